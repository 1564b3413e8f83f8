"""The tool that tests the tests (`tests.mutants`): its list still fits the code, and it tells what
is noticed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.mutants.__main__ import MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.session import Session
from tests.support.building import ROOT


@pytest.mark.parametrize("language", ["cpp", "triton"])
def test_every_mutant_applies(language: str) -> None:
    mutants = [mutant for mutant in MUTANTS if mutant.language == language]
    assert len(mutants) >= 30
    for mutant in mutants:
        mutant.check(ROOT)


@pytest.mark.parametrize(
    ("file", "text", "replacement", "message"),
    [
        ("code.py", "a * b", "a - b", "the text must be found once in code.py, found 0 times"),
        ("code.py", "a", "b", "the text must be found once in code.py, found"),
        ("code.py", "a + b", "(a + b)", "the replacement must change the code of code.py"),
        ("code.py", "a + b", "a + ", "the replacement must be valid Python"),
        ("code.cpp", "// sum", "// difference", "the replacement must change the code of code.cpp"),
        ("code.cpp", "a + b", "a  +  b", "the replacement must change the code of code.cpp"),
    ],
)
def test_a_stale_list_is_an_error(
    tmp_path: Path, file: str, text: str, replacement: str, message: str
) -> None:
    (tmp_path / "code.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "code.cpp").write_text("int add(int a, int b) { return a + b; }  // sum\n")
    with pytest.raises(ValueError, match=f"^one: {message}"):
        Mutant("one", file, text, replacement, ("tests/test_code.py",)).check(tmp_path)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with a function, and a test that looks at one half of it, which needs no plugins."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "tests").mkdir()
    (tmp_path / "code.py").write_text("def both(a, b):\n    return a + b, a - b\n")
    (tmp_path / "tests/test_code.py").write_text(
        "import code\n\n\ndef test_sum():\n    assert code.both(2, 1)[0] == 3\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


SUM = Mutant("sum", "code.py", "a + b", "a * b", ("tests/test_code.py",))
DIFFERENCE = Mutant("difference", "code.py", "a - b", "b - a", ("tests/test_code.py",))


def test_noticed_and_unnoticed(
    project: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, before = tmp_path_factory.mktemp("mutants"), (project / "code.py").read_text()
    assert Session(project, folder, [SUM]).run() == 0
    assert Session(project, folder, [SUM]).summary() == 0
    assert Session(project, folder, [SUM, DIFFERENCE]).summary() == 1  # which tries nothing
    printed = capsys.readouterr().out
    assert "1 killed   0 survived   1 left  code.py" in printed
    assert "left: difference" in printed
    assert Session(project, folder, [SUM, DIFFERENCE]).run() == 1
    printed = capsys.readouterr().out
    assert "1 of 2 were tried before" in printed
    assert "survived: difference (no test)" in printed
    assert Session(project, folder, [SUM, DIFFERENCE]).summary() == 1
    assert "2 of 2 were tried\nsurvived: difference\n" in capsys.readouterr().out
    assert (project / "code.py").read_text() == before
    # Everything is known now; a changed test makes both be tried again.
    assert Session(project, folder, [SUM, DIFFERENCE]).run() == 1
    assert "2 of 2 were tried before" in capsys.readouterr().out
    with (project / "tests/test_code.py").open("a") as file:
        file.write("\n\ndef test_difference():\n    assert code.both(2, 1)[1] == 1\n")
    assert Session(project, folder, [SUM, DIFFERENCE]).run() == 0


def test_one_of_the_list(tmp_path: Path) -> None:
    """The whole list is a command (`make mutants`); here is seen that its copy of this tree
    works."""
    chosen = [mutant for mutant in MUTANTS if mutant.name == "triton-inalu-gradient-beyond-omega"]
    assert len(chosen) == 1
    assert Session(ROOT, tmp_path, chosen).run() == 0
