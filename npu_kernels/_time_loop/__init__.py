"""Time loops of a power layer and a NAU, for `ode` and `_laws`: methods, formulas, fused loops."""
