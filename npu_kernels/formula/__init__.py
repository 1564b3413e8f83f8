"""Formulas of trained models of Neural Power Units.

    >>> import torch
    >>> from npu_kernels import RealNPU, formula
    >>> layer = RealNPU(2, 1)
    >>> layer.weight_re.data = torch.tensor([[1.001, -0.998]])
    >>> layer.gate.data = torch.tensor([1.0, 0.999])
    >>> x = torch.rand(200, 2) + 1
    >>> result = formula.simplify(layer, x, x[:, :1] / x[:, 1:], tolerance=1e-3)
    >>> print(formula.extract(result.module, ["a", "b"]))  # print(result) has the cost of each step
    y = a/b

`extract` needs sympy, ``pip install 'npu_kernels[formula]'``; the rest does not.
"""

from npu_kernels.formula._code import TorchFunction
from npu_kernels.formula._models import as_fraction, nearest_fraction, select
from npu_kernels.formula._reading import Formula, extract
from npu_kernels.formula._simplify import (
    Change,
    SimplifyResult,
    SimplifyStep,
    relative_error,
    simplify,
)

__all__ = [
    "Change",
    "Formula",
    "SimplifyResult",
    "SimplifyStep",
    "TorchFunction",
    "as_fraction",
    "extract",
    "nearest_fraction",
    "relative_error",
    "select",
    "simplify",
]
