"""Neural Power Unit, a layer: training from many starts, rounded, chosen on held-out rows.

_recipe.py   the settings, with defaults
_data.py     rows from tensors or batches, split into training and held-out ones, and their weights
_batch.py    the parameters of a batch of models: starts, intervals, rounding
_scale.py    units of x and y, and the weights of a last sum
_search.py   many starts in training by Adam
_refine.py   L-BFGS in float64, with some parameters held
_pool.py     the models that may be chosen, and the choice
_judge.py    scores on the held-out rows
_stages.py   the stages in their order
_run.py      a fit in progress, saved and continued
_result.py   what a fit returns
_fit.py      `fit` and `fit_many`
"""

from npu_kernels.fitting._fit import fit, fit_many
from npu_kernels.fitting._recipe import Recipe
from npu_kernels.fitting._result import Candidate, Fit, Fits
from npu_kernels.fitting._run import Run

__all__ = ["Candidate", "Fit", "Fits", "Recipe", "Run", "fit", "fit_many"]
