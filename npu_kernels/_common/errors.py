"""Errors that several public modules raise."""

from __future__ import annotations

from typing import Any


class NonFiniteError(FloatingPointError):
    """A value is inf or nan; an ArithmeticError too.

    `npu_kernels.ode` and `npu_kernels.trace` raise it under their own names.

    message: names the model and the step, or the module, the unit and the row.
    first: in `ode`, the first such step of each trajectory (`ode.first_nonfinite`), else None.
    found: in `trace`, the `trace.NonFinite` record, else None.
    """

    def __init__(self, message: str, first: Any = None, *, found: Any = None) -> None:
        super().__init__(message)
        self.first = first
        self.found = found
