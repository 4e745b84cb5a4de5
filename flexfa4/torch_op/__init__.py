"""FlexFA4 inside torch's own machinery: registered ops that hold a call as tensors and text.

An eager call does not come here: dispatching a registered op costs more than a small call's own
work.  `context` tells, in about a microsecond, who watches: ``torch.compile``, ``torch.export``,
``torch.func`` transforms, ``torch.jit.trace``, fake tensors and dispatch modes get the ops.

::

    context    whether a call must be one op
    compiled   attention and create_block_mask as Dynamo traces them
    calls      a call of either -> op, from there and from the eager functions
    deferred   block masks that are made inside a graph
    tables     their blocks as a tensor of the graph
    arguments  a call as what an op can take: tensors, numbers and the graphs as text; and back
    ops        flexfa4::attention, ::attention_backward and ::block_kinds: what they compute, the
               shapes they return, their derivatives
    folding    their vmap rules: a mapped axis becomes heads
    transforms their derivatives under torch.func
    varlen_outside  attention_varlen under Dynamo, which leaves it to Python

``import flexfa4.torch_op.ops`` registers the ops; a process that loads an exported program without
calling `flexfa4` before needs that line.  Recording a mod while Dynamo traces it is the business of
`frontend.tracing.tape`.
"""
