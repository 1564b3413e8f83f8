"""Products of powers: columns, units, a library of exponents, the length of a description."""
