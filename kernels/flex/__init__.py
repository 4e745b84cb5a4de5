"""torch's compiled FlexAttention as a backend, for GPUs that there are no kernels of ours for.

``source`` writes a graph as a Python function on torch tensors, ``compiled`` puts such functions
and a block mask of torch's into one function that ``torch.compile`` takes, ``function`` runs it.
``support`` says what this torch can do; what it cannot is refused before anything is compiled.

Imports torch's FlexAttention and compiler on the first call only.
"""
