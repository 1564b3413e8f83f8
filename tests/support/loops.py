"""How `training.run` makes its steps: many in a call or one by one, and why."""

import contextlib
import re
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from npu_kernels.training import _run as runs
from npu_kernels.training import run

NOTICE = "training.run makes its steps one by one"


@contextlib.contextmanager
def one_by_one() -> Iterator[None]:
    """The ordinary loop makes all steps, without a notice: a hook of all modules that does nothing."""
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", f".*{NOTICE}")
            yield
    finally:
        handle.remove()


@contextlib.contextmanager
def new_notices() -> Iterator[None]:
    """Notices that were given in this process are given again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_warned", set())
        yield


def why(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    x: Tensor | None = None,
    y: Tensor | None = None,
) -> str | None:
    """The reason in the notice of a run of one step, which may then fail; None without a notice."""
    x = torch.rand(5, 2) if x is None else x
    last = [model, *model.children()][-1]
    y = x.new_ones(len(x), getattr(last, "out_features", 3)) if y is None else y
    optimizer = torch.optim.Adam(model.parameters()) if optimizer is None else optimizer
    with new_notices(), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        error = None
        try:
            run(model, x, y, steps=1, optimizer=optimizer, project=False, progress=False)
        except Exception as problem:  # of the step, where the reason is a wrong state or model
            error = problem
    texts = [str(warning.message) for warning in seen]
    reasons = [match[1] for text in texts if (match := re.search(f"{NOTICE}, because (.*)", text))]
    if error is not None and not reasons:
        raise error
    assert len(reasons) <= 1
    return reasons[0] if reasons else None
