"""Neural Power Unit, a layer: training from many starts in one batch of models, rounded, and chosen on held-out rows.

recipe.py    the settings, with defaults
data.py      rows from tensors or batches, split into training and held-out ones, and the loss's weights
batch.py     the parameters of a batch of models: starts, intervals, rounding, one model out of many
search.py    many starts under Adam, fewer and fewer of them
refine.py    L-BFGS in float64, with some parameters held
run.py       the stages in their order; saved and resumed
result.py    what comes out
fit.py       `fit` and `fit_many`
"""

from npu_kernels.fitting._fit import fit, fit_many
from npu_kernels.fitting._recipe import Recipe
from npu_kernels.fitting._result import Candidate, Fit, Fits
from npu_kernels.fitting._run import Run

__all__ = ["Candidate", "Fit", "Fits", "Recipe", "Run", "fit", "fit_many"]
