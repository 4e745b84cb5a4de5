"""Kernels for Hopper (compute capability 9.0): WGMMA, TMA and warp specialisation.

Each kernel is a folder of warp roles, composed of `primitives`.  Modules in here import CuTe-DSL,
except those that plan; nothing else in the project imports them before a kernel is to be compiled.
"""
