"""Launching compiled kernels by the CUDA driver, without CuTe-DSL.

::

    driver        the functions of CUDA's driver that are called, by ctypes; errors by CUDA's names
    tensor_map    tensors as tensor copies take them: limits, and what the driver encodes
    arguments     values of a call, packed by a kernel's signature into memory that stays
    loaded        a kernel on one device: loaded once, launched in microseconds
    executor      `Executor`: who launches; `CudaExecutor`: the device that does
    emulated      the executor that is the emulator
    target        which executor is for the tensors of a call; what may stand in for it

Whoever launches is handed an `Executor`, so the same code runs on a GPU and on an emulated device.
"""
