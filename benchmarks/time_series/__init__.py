"""How often `ode.fit` finds known laws in time series, and how often its intervals contain the truth."""
