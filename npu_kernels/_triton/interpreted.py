"""The operators on CPU tensors in a process where Triton interprets. Imports no triton."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

lock = threading.RLock()  # Triton's interpreter keeps its state in globals


def register(
    kernels: Mapping[str, Callable[..., Any]], is_chosen: Callable[[], bool]
) -> torch.library.Library:
    """Let operators of the C++ library run these kernels instead, where `is_chosen` says so.

    Compiled graphs, exported programs, vmap and DTensor then run them too.
    """
    library = torch.library.Library("npu_kernels", "IMPL", "CPU")
    for name, kernel in kernels.items():
        operator = f"npu_kernels::{name}"
        if not torch._C._dispatch_has_kernel_for_dispatch_key(operator, "CPU"):
            continue
        compiled = torch.library.get_kernel(operator, "CPU")

        def choose(keys: Any, *args: Any, kernel: Any = kernel, compiled: Any = compiled) -> Any:
            return kernel(*args) if is_chosen() else compiled.call_boxed(keys, *args)

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            library.impl(name, choose, with_keyset=True, allow_override=True)
    return library
