"""The digits that numbers have. Needs no NumPy unless it is given what only NumPy reads."""

from typing import Any

import torch

FLOAT64_ROUNDING = 8 * torch.finfo(torch.float64).eps  # of a size: what a sum in float64 loses


def digits_of(values: Any) -> float:
    """Return the relative error to which numbers are rounded, by their dtype."""
    if isinstance(values, torch.Tensor):
        eps = torch.finfo(values.dtype).eps if values.is_floating_point() else 0.0
    else:
        import numpy as np

        dtype = np.asarray(values).dtype
        eps = float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0
    return max(eps / 2, FLOAT64_ROUNDING)
