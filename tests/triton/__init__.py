"""Tests of the Triton kernels.

    TRITON_INTERPRET=1 python -m pytest tests/triton   # without a GPU: Triton's interpreter
    python -m pytest tests/triton -m gpu                  the same tests, and more, on the GPU

Ahead-of-time compilation for GPUs that are not there runs either way, in a child process.
"""
