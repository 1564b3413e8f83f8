"""The C++ core and the extension under the address and undefined-behaviour sanitizers."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.sanitized import FILES, SANITIZERS, Sanitized
from tests.conftest import needs_fast_path, needs_library
from tests.support.building import ROOT, needs_compiler, one_process_at_a_time, run_core_tests

pytestmark = [
    needs_library,
    needs_compiler,
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="needs LD_PRELOAD and GCC's sanitizers"
    ),
    needs_fast_path,
]

# An x whose memory is smaller than its storage says. A report ends its process.
OVERFLOW = """
import ctypes, os, torch, npu_kernels
from npu_kernels import env
from tests.conftest import without_fast_path
torch.set_num_threads(1)
print(env.environment()["cpu library"], flush=True)
x, layer = torch.rand(100, 2), npu_kernels.NPU(2, 3)
layer(x)
malloc = ctypes.CDLL(None).malloc
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
x = torch.frombuffer((ctypes.c_char * x.nbytes).from_address(malloc(64)), dtype=x.dtype).view(100, 2)
for operators in (False, True):
    if os.fork() == 0:
        if operators:
            without_fast_path().__enter__()
        print("before", flush=True)
        layer(x)
        print("after", flush=True)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


@pytest.fixture(scope="module")
def sanitized() -> Iterator[Sanitized]:
    """The quick build; `make sanitize` has all instruction sets, and the fast path sanitized."""
    build = Sanitized(ROOT / "build" / "sanitized-quick")
    with one_process_at_a_time(build.folder):
        build.build(quick=True)
        yield build


def test_core(sanitized: Sanitized) -> None:
    log = run_core_tests(sanitized.folder)
    for name in SANITIZERS:
        assert re.search(rf"sees_{name} \.+ +Passed", log)


def test_a_read_out_of_bounds_is_seen(sanitized: Sanitized) -> None:
    """By the fast path, and by the operators."""
    run = sanitized.run("-c", OVERFLOW)
    library, *said = run.stdout.split()
    assert f"{sanitized.tree}/npu_kernels/lib" in library, run.stderr
    assert said == ["before", "1", "before", "1"], run.stdout + run.stderr
    assert run.stderr.count("SUMMARY: AddressSanitizer: heap-buffer-overflow") == 2
    assert run.stderr.count("npu_forward") >= 2


def test_extension(sanitized: Sanitized) -> None:
    """The smallest part of `make sanitize` with every operator and function of the fast path."""
    names = ("test_fast_path", "test_fast_path_ode", "test_edges", "test_optim")
    files = [file for file in FILES if Path(file).stem in names]
    assert len(files) == len(names)
    tests = "same_bits or one_weight or one_of_everything or gradients_of_any_layout"
    run = sanitized.run_tests(*files, "-k", tests)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-5000:]
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed
    assert int(passed[1]) > 100
