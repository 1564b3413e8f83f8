"""Neural Power Unit, a layer: what a model has learnt, as a formula.

    result = formula.simplify(model, x, y, tolerance=1e-3)      # gates, weights: simple where the error allows it
    print(result)                                               # what each step cost
    print(formula.read(result.module, ["S", "I", "R"]))         # sympy, text, LaTeX, a torch function

`read` needs sympy, ``pip install 'npu_kernels[formula]'``; the rest does not.
"""

from npu_kernels.formula.code import TorchFunction
from npu_kernels.formula.fractions import as_fraction, nearest_fraction
from npu_kernels.formula.models import select
from npu_kernels.formula.reading import Formula, read
from npu_kernels.formula.record import Change, Simplified, Step
from npu_kernels.formula.scoring import relative_error
from npu_kernels.formula.simplify import simplify

__all__ = [
    "Change",
    "Formula",
    "Simplified",
    "Step",
    "TorchFunction",
    "as_fraction",
    "nearest_fraction",
    "read",
    "relative_error",
    "select",
    "simplify",
]
