"""The law behind the columns of a file: ``python -m npu_kernels.law FILE``."""

from npu_kernels.law._command import main

__all__ = ["main"]
