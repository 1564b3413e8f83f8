"""Time loops of a power layer and a NAU: methods, formulas and the fused loop."""
