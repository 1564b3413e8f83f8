"""Fixtures that all tests share."""

import contextlib
import warnings
from collections.abc import Iterator

import pytest
import torch

from npu_kernels import backend_for, use_backend
from npu_kernels._backends import cpu, fast_path

with contextlib.suppress(ImportError):  # most tests on a GPU do without it
    import hypothesis

    # No deadline: the machines that run this are shared. No database: a run does not depend on the
    # one before.
    hypothesis.settings.register_profile(
        "npu_kernels", deadline=None, database=None, derandomize=True, max_examples=60
    )
    hypothesis.settings.load_profile("npu_kernels")

pytest_plugins = ["tests.slow"]

ISAS = cpu.supported_isas() if cpu.available()[0] else []
needs_library = pytest.mark.skipif(
    not cpu.available()[0], reason=f"the cpu backend cannot run: {cpu.available()[1]}"
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
        pytest.param(
            "operators",
            marks=pytest.mark.skipif(fast_path.npu is None, reason="they are what `cpu` calls"),
        ),
    ]
)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every backend of the CPU, forced; C++ kernels called directly and by their operators."""
    name = request.param
    if name == "operators":
        for name in ("npu", "nmu", "nau", "nac", "nalu", "inalu", "mse", "adam", "ode"):
            monkeypatch.setattr(fast_path, name, None)
        name = "cpu"
    with use_backend(name):
        yield name


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


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set that this processor has, in use."""
    before = cpu.isa()
    cpu.set_isa(request.param)
    yield request.param
    cpu.set_isa(before)
