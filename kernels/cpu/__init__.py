"""The CPU backend: attention by tiles in plain torch, on any torch device.

Stages, in the order in which a call passes through them::

    score_form  how the score mod is split around the matrix product
    products    how a graph is written so that sums over vectors are matrix products
    lowering    functions computed otherwise than torch does
    plan        graphs -> compiled programs and the choices that follow from them; cached
    proofs      what is proved about a call, so that it may take a shorter way
    schedule    runs of blocks -> tiles of queries and runs of keys
    scores      one tile's biased, masked scores
    forward     tiles -> out, lse
    backward    tiles -> gradients of q, k, v and sink; captures_grad has those of captured tensors
    function    `CPU`, the backend: a request -> a call with its plan, proofs and schedule
    describe    all this in words, for `flexfa4.explain`

Calls neither ``scaled_dot_product_attention`` nor torch's ``flex_attention``, and never holds a
``q_len x kv_len`` matrix.
"""
