"""Every command that a document names is in the list of what users run, and the tests that the list
names exist."""

import ast
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TypeGuard

import pytest

from release.extras import EXAMPLES, code_of
from tests.project.what_users_run import COMMANDS, INSTALLATIONS, NO_RECORD, WHOLE, Entry
from tests.support.building import ROOT, run_forked

PAGES = ["README.md", "CONTRIBUTING.md", "benchmarks/README.md", "benchmarks/results/README.md"]
WORKFLOWS = [*sorted(ROOT.glob(".github/**/*.yml")), ROOT / ".ci" / "run"]
# What makes a command, and how the list writes it.
FORMS = {
    r"\bmake (?:-\S+ )*([a-z][a-z-]*)": "make {}",
    r"python[\d.]* -m ([a-z]\w*(?:\.\w+)*)": "python -m {}",
    r"python[\d.]* ((?:\w+/)*\w+\.py)": "python {}",
    r"pip install (?!-)'?\"?([\w\[\].]+)": "pip install {}",
    r"(NPU_KERNELS_[A-Z_]+)=": "{}",
    r"(?<![\w./])((?:\.ci/run|benchmarks/gpu\.sh))": "{}",
    r"(?:^|[ `])(ctest|torchrun|compute-sanitizer) ": "{}",
}
# what documents name with `pip install`, and is not ours
OF_OTHERS = {"setuptools", "torch", "scikit", "torchdiffeq"}
# Commands with arguments; those that a person who releases runs too, which make calls.
WITH_HELP = [
    "benchmarks.demo", "benchmarks.equations", "benchmarks.equations.processors",
    "benchmarks.equations.workers", "benchmarks.paper",
    "benchmarks.throughput",
    "benchmarks.throughput.report", "benchmarks.throughput.cold", "benchmarks.time_series",
    "benchmarks.extrapolation", "benchmarks.regression", "npu_kernels.certify", "npu_kernels.env",
    "npu_kernels.equations",
    "release.wheels", "release.try_install", "release.extras", "release.emulated",
    "release.support", "tests.mutants", "tools.aot", "tools.aot.report",
    "tools.certify",
]  # fmt: skip


def code_of_page(page: Path) -> str:
    """The blocks and the spans of code, one a line; prose has the same words in other meanings."""
    text = page.read_text(encoding="utf-8")
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    blocks = [block for language, block in fenced if language in ("", "bash")]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    spans = [span for part in prose.split("\n\n") for span in re.findall(r"`([^`]+)`", part)]
    indented = re.findall(r"^    .*", prose, re.M)
    return "\n".join([*blocks, *indented, *(span.replace("\n", " ") for span in spans)])


def without_comments(script: Path) -> str:
    return re.sub(r"(?m)^\s*#.*$", "", script.read_text())


def documents() -> dict[str, str]:
    """The text of each document in which a command may stand."""
    pages = [ROOT / page for page in PAGES] + sorted((ROOT / "docs").rglob("*.md"))
    texts = {str(page.relative_to(ROOT)): code_of_page(page) for page in pages}
    texts |= {
        str(file.relative_to(ROOT)): without_comments(file) for file in WORKFLOWS if file.exists()
    }
    header = (ROOT / "Makefile").read_text().partition("\n\n")[0]
    texts["Makefile"] = "\n".join(re.findall(r"^#   (make .*)", header, re.M))
    for script in sorted((ROOT / "examples").glob("*.py")):
        texts[f"examples/{script.name}"] = ast.get_docstring(ast.parse(script.read_text())) or ""
    return texts


def is_function(node: ast.AST) -> TypeGuard[ast.FunctionDef]:
    return isinstance(node, ast.FunctionDef)


def named_commands() -> dict[str, str]:
    """Each command, and the first document that names it."""
    commands: dict[str, str] = {}
    for document, text in documents().items():
        for form, written in FORMS.items():
            for word in re.findall(form, text, re.M):
                if word.partition("[")[0] not in OF_OTHERS:
                    commands.setdefault(written.format(word), document)
    return commands


def test_every_command_of_a_document_is_listed() -> None:
    listed = {entry.name for entry in COMMANDS}
    missing = [
        f"{name} ({document})" for name, document in named_commands().items() if name not in listed
    ]
    assert missing == []


def test_every_listed_command_is_in_a_document() -> None:
    named = named_commands()
    assert [entry.name for entry in COMMANDS if entry.name not in named] == []


def test_every_target_of_the_makefile_is_listed() -> None:
    """The header names those that are for people."""
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: ((?:.*\\\n)*.*)", makefile, re.M)
    targets = {f"make {target}" for target in phony.replace("\\\n", " ").split()}
    assert targets == {entry.name for entry in COMMANDS if entry.name.startswith("make ")}


def test_names_are_unique() -> None:
    names = [entry.name for entry in COMMANDS + INSTALLATIONS]
    assert [name for name in names if names.count(name) > 1] == []


@pytest.mark.parametrize("entry", COMMANDS + INSTALLATIONS, ids=lambda entry: entry.name)
def test_what_the_list_says_of_ci_is_there(entry: Entry) -> None:
    assert bool(entry.checked_by) != bool(entry.reason), "tests, or the reason why there are none"
    script = (ROOT / ".ci" / "run").read_text().splitlines() if (ROOT / ".ci").exists() else None
    for check in entry.checked_by:
        if check.startswith("make "):
            assert script is None or any(check in line.partition("#")[0] for line in script), check
        else:
            module, _, name = check.partition("::")
            tree = ast.parse((ROOT / "tests" / f"{module}.py").read_text())
            assert name in {node.name for node in ast.walk(tree) if is_function(node)}, check
    date_and_commit = re.fullmatch(r"\d{4}-\d\d-\d\d [0-9a-f]{7}", entry.last_whole_run)
    assert date_and_commit or entry.last_whole_run in (WHOLE, NO_RECORD)
    assert entry.checked_by or entry.last_whole_run != WHOLE


# ---- what no other test runs ----------------------------------------------------------------


def test_version() -> None:
    if not shutil.which("make"):
        pytest.skip("needs make")
    run = subprocess.run(
        ["make", "-s", "version"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert f'version = "{run.stdout.strip()}"' in (ROOT / "pyproject.toml").read_text().splitlines()


def test_extras() -> None:
    """The extras that documents name are those of pyproject.toml."""
    extras = {
        name[len("pip install npu_kernels[") : -1]
        for name in named_commands()
        if "npu_kernels[" in name
    }
    project = (ROOT / "pyproject.toml").read_text()
    (table,) = re.findall(r"^\[project.optional-dependencies\]\n(.*?)\n\n", project, re.M | re.S)
    assert extras
    assert extras <= set(re.findall(r"^(\w+) = ", table, re.M))
    assert extras == EXAMPLES.keys()


def test_examples_of_extras(tmp_path: Path) -> None:
    """The code runs with all extras installed; `make test-extras` has each of them alone."""
    for name in ("sklearn", "sympy", "pandas", "pint", "matplotlib", "torchdiffeq", "triton"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    code = "\n".join(map(code_of, EXAMPLES))
    run = run_forked(code, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("module", WITH_HELP)
def test_help(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command starts, names itself as it is called, and says what it does."""
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    for name in (module, f"{module}.__main__"):  # another test may have imported them
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit) as stop:
        runpy.run_module(module, run_name="__main__", alter_sys=False)
    assert not stop.value.code
    usage, *rest = capsys.readouterr().out.split("\n\n")
    assert usage.split()[:4] == ["usage:", "python", "-m", module]
    assert not rest[0].startswith(("options:", "positional arguments:"))
