"""The shares of time series whose law `ode.fit` finds. ``python -m benchmarks.time_series``."""
