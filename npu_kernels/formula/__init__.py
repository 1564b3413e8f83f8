"""Neural Power Unit, a layer: what a model has learnt, as a formula."""

from npu_kernels.formula.fractions import as_fraction, nearest_fraction

__all__ = ["as_fraction", "nearest_fraction"]
