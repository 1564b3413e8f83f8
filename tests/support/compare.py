"""Comparisons of lists of tensors: outputs and gradients, in order."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from tests.support.samples import normwise_error


def assert_equal(actuals: Iterable[Tensor], expected: Iterable[Tensor], case: object = "") -> None:
    """Assert that the tensors are equal to the bit, one by one."""
    for position, (actual, want) in enumerate(zip(actuals, expected, strict=True)):
        assert torch.equal(actual, want), f"tensor {position} differs {case}"


def assert_near(
    actuals: Iterable[Tensor], expected: Iterable[Tensor], bound: float, case: object = ""
) -> None:
    """Assert that each tensor's normwise error is below `bound`."""
    for position, (actual, want) in enumerate(zip(actuals, expected, strict=True)):
        error = normwise_error(actual, want)
        assert error < bound, f"tensor {position} has error {error:.3g} of {bound:.3g} {case}"


def report_of(result: Any) -> str:
    """The report of a fit without its line breaks."""
    return " ".join(result.report().split())
