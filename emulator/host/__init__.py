"""The host side: kernels that CuTe-DSL launches arrive as records, with no GPU and no driver.

architectures  the devices that there are, and their limits
errors         what can be wrong, in words
device         `Device`: the ``with`` block in which launches arrive
installation   the changes to CuTe-DSL for that time
binding        compiled host code made to call Python, and to carry its PTX
cuda_calls     what it calls, and the answers
signatures     names, targets and parameters of kernels, read from PTX
launch         `Launch`: the record of one launch
tensor_map     the bytes of tensor maps; tensor_map_encoding writes them, as the driver does
cuda_tensor    a CPU tensor that says it is on a CUDA device
allocations    addresses that kernels may touch

cutlass and torch are imported where they are used.
"""
