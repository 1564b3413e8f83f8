"""The registered operators: records, derivatives, checks of operands, choice of a backend."""
