"""What computes in this process: instruction sets, and the fast path to them."""

import contextlib
import os
from collections.abc import Iterator

import pytest

from npu_kernels._operators import cpu, fast_path

RUNS, WHY_NOT = cpu.available()  # the C++ library
ISAS = cpu.supported_isas() if RUNS else []
isa_in_use, set_isa = cpu.isa, cpu.set_isa
# Those to test: one alone where a run is held to it.
TESTED = [isa for isa in ISAS if os.environ.get("NPU_KERNELS_CPU_ISA") in (None, isa)]
HAS_FAST_PATH = fast_path.npu is not None


@contextlib.contextmanager
def without_fast_path() -> Iterator[None]:
    """Calls reach the kernels through the registered operators."""
    with pytest.MonkeyPatch.context() as patch:
        for name in fast_path.NAMES:
            patch.setattr(fast_path, name, None)
        yield
