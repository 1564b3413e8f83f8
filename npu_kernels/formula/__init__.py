"""Neural Power Unit, a layer: what a model has learnt, as a formula.

    >>> model = torch.nn.Sequential(RealNPU(2, 1), NAU(1, 1))
    >>> print(read(model, ["x", "y"], outputs=["z"]))  # doctest: +SKIP

`read` gives the formula as sympy expressions, text, LaTeX and a torch function. It needs sympy, the rest does not:
``pip install 'npu_kernels[formula]'``.
"""

from npu_kernels.formula.code import TorchFunction
from npu_kernels.formula.fractions import as_fraction, nearest_fraction
from npu_kernels.formula.models import select
from npu_kernels.formula.reading import Formula, read

__all__ = ["Formula", "TorchFunction", "as_fraction", "nearest_fraction", "read", "select"]
