"""What a caller of this package may have switched on in torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# Functions that return a context, for a parametrised test
MODES: list[Any] = [
    pytest.param(torch.inference_mode, id="inference_mode"),
    pytest.param(lambda: default_dtype(torch.float64), id="float64"),
    pytest.param(lambda: default_dtype(torch.float16), id="float16"),
    pytest.param(lambda: torch.autocast("cpu", torch.bfloat16), id="autocast"),
]
