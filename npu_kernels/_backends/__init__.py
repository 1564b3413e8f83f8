"""The backends, where operators run: one module each; none of them knows torch modules.

A backend offers ``available(...) -> (bool, reason)`` and either registers kernels for the operators
of `npu_kernels._operators.ops` (cpu) or has functions with their names and signatures (triton).
"""
