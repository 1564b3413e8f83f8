"""Training of Neural Power Units from many random initialisations, with rounding and selection.

_fit.py         `fit` and `fit_batch`
_run.py         a fit in progress: its stages in their order, saved and continued
_choice.py      the candidates, their held-out errors, and the choice
_training.py    many initialisations with Adam; L-BFGS in float64, with some parameters fixed
_population.py  the parameters of a batch of models: initialisation, intervals, rounding; scales of
                x and y, the weights of a last sum; inputs of both signs
_data.py        rows from tensors or batches, split into training and held-out ones, and weights
_recipe.py      the settings, with defaults, and what a fit returns
"""

from npu_kernels.fitting._fit import fit, fit_batch
from npu_kernels.fitting._recipe import BatchFitResult, Candidate, FitResult, Recipe
from npu_kernels.fitting._run import FitJob

__all__ = ["BatchFitResult", "Candidate", "FitJob", "FitResult", "Recipe", "fit", "fit_batch"]
