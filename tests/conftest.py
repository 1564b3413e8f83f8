"""Fixtures that all tests share."""

import contextlib
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from npu_kernels import backend_for, use_backend
from tests.support.machine import (
    HAS_FAST_PATH,
    RUNS,
    TESTED,
    WHY_NOT,
    isa_in_use,
    set_isa,
    without_fast_path,
)

with contextlib.suppress(ImportError):  # most tests on a GPU do without it
    import hypothesis

    # No deadline: the machines that run this are shared. No database: a run does not depend on the
    # one before.
    hypothesis.settings.register_profile(
        "npu_kernels", deadline=None, database=None, derandomize=True, max_examples=60
    )
    hypothesis.settings.load_profile("npu_kernels")

pytest_plugins = ["tests.slow"]

needs_library = pytest.mark.skipif(not RUNS, reason=f"the cpu backend cannot run: {WHY_NOT}")
needs_fast_path = pytest.mark.skipif(
    not HAS_FAST_PATH, reason="the fast path is not built for this torch and Python"
)


@pytest.fixture(scope="session", autouse=True)
def _notice() -> None:
    """Raise the notice of a missing C++ library once, here, and not in the first test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backend_for(torch.empty(0))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Threads of torch spin, and wait on a busy machine. `test_threads` sets its own number."""
    torch.set_num_threads(1)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread for this test; afterwards as many as before, whatever the test has set."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(
    params=[
        "reference",
        pytest.param("cpu", marks=needs_library),
        pytest.param("operators", marks=needs_fast_path),  # without it, they are what `cpu` calls
    ]
)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every backend of the CPU, forced; C++ kernels called directly and by their operators."""
    by_operators = request.param == "operators"
    name = "cpu" if by_operators else request.param
    with use_backend(name), without_fast_path() if by_operators else contextlib.nullcontext():
        yield name


@pytest.fixture(scope="session")
def bare_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the package without its C++ library, for processes that begin there."""
    folder = tmp_path_factory.mktemp("bare")
    source = Path(__file__).resolve().parents[1] / "npu_kernels"
    shutil.copytree(source, folder / "npu_kernels", ignore=shutil.ignore_patterns("lib"))
    return folder


compiles = pytest.mark.usefixtures("fresh_compiler")
# A compiled graph never takes the fast path: by it or by operators is the same.
compiled_backends = pytest.mark.parametrize(
    "backend", ["reference", pytest.param("cpu", marks=needs_library)], indirect=True
)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(params=TESTED)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set that this processor has, or to which the run is held, in use."""
    before = isa_in_use()
    set_isa(request.param)
    yield request.param
    set_isa(before)
