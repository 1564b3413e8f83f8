"""Warnings that point to the user's line."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

# What lies between a user's line and a warning: this package, and the code of others that calls it
# for the user.
BETWEEN = ("npu_kernels", "torch", "contextlib", "joblib", "sklearn")


def warn(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Warn as `warnings.warn` at the line of the user's code that led here."""
    frame = _users_frame()
    variables = frame.f_globals
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=variables.get("__name__", "<string>"),
        registry=variables.setdefault("__warningregistry__", {}),
    )


def _users_frame() -> FrameType:
    """Return the innermost frame of the user's code; the outermost one in a thread of torch."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_between(frame):
        frame = frame.f_back
    return frame


def _is_between(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")  # absent in code that torch.fx wrote
    return name is None or name.partition(".")[0] in BETWEEN
