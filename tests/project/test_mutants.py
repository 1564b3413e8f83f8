"""The tool that tests the tests (`tests.mutants`): its list still fits the code, and it tells what
is noticed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.mutants.__main__ import MUTANTS, try_all
from tests.mutants.mutant import Mutant
from tests.support.building import ROOT


@pytest.mark.parametrize("language", ["cpp", "triton"])
def test_every_mutant_applies(language: str) -> None:
    mutants = [mutant for mutant in MUTANTS if mutant.language == language]
    assert len({mutant.name for mutant in mutants}) == len(mutants) >= 30
    for mutant in mutants:
        mutant.check(ROOT)


@pytest.mark.parametrize(
    ("text", "replacement", "message"),
    [
        ("a * b", "a - b", "the text must be found once in code.cpp, found 0 times"),
        ("a", "b", "the text must be found once in code.cpp, found"),
        ("// sum", "// difference", "the replacement must change the code of code.cpp"),
        ("a + b", "a  +  b", "the replacement must change the code of code.cpp"),
        ("a + b", "a - b", "there is no tests/test_code.py"),
    ],
)
def test_a_stale_list_is_an_error(
    tmp_path: Path, text: str, replacement: str, message: str
) -> None:
    (tmp_path / "code.cpp").write_text("int add(int a, int b) { return a + b; }  // sum\n")
    with pytest.raises(ValueError, match=f"^one: {message}"):
        Mutant("one", "code.cpp", text, replacement, ("tests/test_code.py -k x",)).check(tmp_path)


def test_noticed_and_unnoticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a tree with a function, and a test that looks at one half of it."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    project, test = tmp_path / "project", "tests/test_code.py"
    (project / "tests").mkdir(parents=True)
    (project / "code.py").write_text("def both(a, b):\n    return a + b, a - b\n")
    (project / test).write_text(
        "import code\ndef test_sum():\n    assert code.both(2, 1)[0] == 3\n"
    )
    (project / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    tried = Mutant("sum", "code.py", "a + b", "a * b", (test,))
    untested = Mutant("difference", "code.py", "a - b", "b - a", (test,))
    nothing = Mutant("nothing", "code.py", "a - b", "b - a", (f"{test} -k nothing",))
    assert try_all(project, tmp_path / "out", [tried]) == 0
    assert try_all(project, tmp_path / "out", [tried, untested, nothing]) == 1
    printed = capsys.readouterr().out
    assert "1 of 3 were tried before" in printed
    assert "\nsurvived: difference\n" in printed
    assert f"broken: nothing pytest {test} -k nothing ended with 5" in printed
    assert "a + b, a - b" in (project / "code.py").read_text()
    with (project / test).open("a") as file:
        file.write("\ndef test_difference():\n    assert code.both(2, 1)[1] == 1\n")
    assert try_all(project, tmp_path / "out", [tried, untested]) == 0  # a changed test: tried again
