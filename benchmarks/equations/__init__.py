"""Neural Power Unit, a layer: how often `NPURegressor` finds known equations. ``python -m benchmarks.equations``."""
