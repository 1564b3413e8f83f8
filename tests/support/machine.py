"""What computes in this process: instruction sets, and the fast path to them."""

import contextlib
from collections.abc import Iterator

import pytest

from npu_kernels._operators import cpu, fast_path

RUNS, WHY_NOT = cpu.available()  # the C++ library
ISAS = cpu.supported_isas() if RUNS else []
isa_in_use, set_isa = cpu.isa, cpu.set_isa
HAS_FAST_PATH = fast_path.npu is not None


@contextlib.contextmanager
def without_fast_path() -> Iterator[None]:
    """Calls reach the kernels through the registered operators."""
    with pytest.MonkeyPatch.context() as patch:
        for name in fast_path.NAMES:
            patch.setattr(fast_path, name, None)
        yield
