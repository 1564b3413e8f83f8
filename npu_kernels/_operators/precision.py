"""What the user allows float32 matrix products, by whichever of torch's settings."""

from __future__ import annotations

from typing import Any

import torch

_CPU = {"tf32": "high", "bf16": "medium"}  # else "highest"


def float32_matmul_precision(device_type: str = "cuda") -> str:
    """Return "highest", "high" or "medium" for products of that device type ("cpu" or "cuda").

    torch has two settings: one for all devices (`torch.set_float32_matmul_precision`), and newer
    ones of each device (``torch.backends.cuda.matmul.fp32_precision``, which
    ``torch.backends.fp32_precision`` sets too). The first sets the newer ones, but not the other
    way: once a newer one says something else, `torch.get_float32_matmul_precision` raises. So the
    newer one is read first. "high" and "medium" are one setting to CUDA, so there the older one
    distinguishes them if it can.
    """
    backends: Any = torch.backends
    if device_type == "cpu":
        return _CPU.get(backends.mkldnn.matmul.fp32_precision, "highest")
    if backends.cuda.matmul.fp32_precision != "tf32":
        return "highest"
    try:
        return "medium" if torch.get_float32_matmul_precision() == "medium" else "high"
    except RuntimeError:  # "mix of the legacy and new APIs"
        return "high"
