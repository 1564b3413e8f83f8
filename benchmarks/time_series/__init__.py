"""The shares of series whose equations `ode.fit` finds. ``python -m benchmarks.time_series``."""
