"""Training of Neural Power Units from many starts, rounded, chosen on held-out rows.

_records.py    the settings, with defaults, and what a fit returns
_data.py       rows from tensors or batches, split into training and held-out ones, and weights
_batch.py      the parameters of a batch of models: starts, intervals, rounding
_scale.py      units of x and y, and the weights of a last sum
_training.py   many starts by Adam; L-BFGS in float64, with some parameters held
_choice.py     the models that may be chosen, their scores on the held-out rows, and the choice
_stages.py     the stages in their order
_run.py        a fit in progress, saved and continued
_fit.py        `fit` and `fit_many`
"""

from npu_kernels.fitting._fit import fit, fit_many
from npu_kernels.fitting._records import Candidate, Fit, Fits, Recipe
from npu_kernels.fitting._run import Run

__all__ = ["Candidate", "Fit", "Fits", "Recipe", "Run", "fit", "fit_many"]
