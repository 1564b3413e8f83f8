"""Where the operators run. One module per backend; none of them knows torch modules.

A backend offers ``available(...) -> (bool, reason)`` and either registers kernels for the operators of
`npu_kernels._operators.ops` (cpu) or has functions with the operators' names and signatures (triton).
"""
