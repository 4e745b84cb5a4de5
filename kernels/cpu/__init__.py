"""The CPU backend: attention by tiles in plain torch, on any torch device.

Stages, in the order in which a call passes through them::

    score_form  how the score mod is split around the matrix product
    lowering    functions computed otherwise than torch does
    proofs      what interval analysis proves about a call
    plan        graphs -> compiled programs and the choices that follow from them; cached
    schedule    block kinds -> tiles of queries and runs of keys
    scores      one tile's biased, masked scores
    forward     tiles -> out, lse
    backward    tiles -> gradients of q, k, v, sink and captured tensors
    function    the autograd function around both

Calls neither ``scaled_dot_product_attention`` nor torch's ``flex_attention``, and never holds a
``q_len x kv_len`` matrix.
"""
