"""How often `NPURegressor` finds known equations. ``python -m benchmarks.equations``."""
