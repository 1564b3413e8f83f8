"""The fields of a plan have the same names in Python and in C++."""

import importlib.util
import sys

import pytest

from npu_kernels._backends import cpu
from npu_kernels._loops import records
from tests.conftest import needs_library

pytestmark = needs_library


def test_fields_have_the_same_names() -> None:
    text = cpu.plan_fields()
    assert "call: rmsprop models steps" in text
    records.check(text)


def test_fields_that_differ_are_an_error() -> None:
    """Neighbours exchanged, each name left out, each line left out or moved."""
    lines = cpu.plan_fields().splitlines()
    wrong = [
        "",
        *("\n".join(lines[:n] + lines[n + 1 :]) for n in range(len(lines))),
        "\n".join(lines[::-1]),
    ]
    for n, line in enumerate(lines):
        words = line.split(" ")
        for w in range(1, len(words)):
            swapped = [*words[: w - 1], words[w], words[w - 1], *words[w + 1 :]]
            for changed in (swapped, words[:w] + words[w + 1 :]):
                wrong.append("\n".join([*lines[:n], " ".join(changed), *lines[n + 1 :]]))
    assert len(wrong) > 100
    for text in wrong:
        with pytest.raises(
            RuntimeError, match=r"built from other sources: .* Build it with `pip install"
        ):
            records.check(text)


def test_names_are_compared_when_the_library_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    text = cpu.plan_fields().replace("steps before", "before steps")
    monkeypatch.setattr(cpu, "plan_fields", lambda: text)
    spec = importlib.util.spec_from_file_location("records_again", records.__file__)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "records_again", module)
    with pytest.raises(RuntimeError, match="differ in call: rmsprop models before steps every"):
        spec.loader.exec_module(module)


def test_a_library_without_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_symbols", object())
    assert cpu.plan_fields() == ""
