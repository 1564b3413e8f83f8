"""Wrong arguments of all public functions: each is an error that says what must be."""

import pytest

from tests.contract import messages


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    for package in ("sklearn", "sympy", "pandas", "pint", "torchdiffeq"):
        pytest.importorskip(package, reason=f"{package} is not installed")


@pytest.mark.parametrize(("call", "message"), messages.read())
def test_message(call: str, message: str) -> None:
    anew = "If this is what you want, `python -m tools.contract` writes the contract anew."
    assert messages.error_of(call) == message, anew


def test_every_call_stands_once() -> None:
    calls = [call for call, _ in messages.read()]
    assert len(calls) == len(set(calls))
