"""Equations of time series: `ode.fit`, its search, intervals and alternatives."""
