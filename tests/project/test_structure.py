"""The structure of the tree: folders, imports, what is public, words and lengths."""

import ast
import collections
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.sanitized import FILES

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = "npu_kernels", "benchmarks", "tools", "tests", "examples"

# Measures of words and lengths, and the most that each of `PACKAGES` may have. The goals are
# 0.3 %, 1 %, 0, 0.5 % and 0: a number may only fall.
LIMITS = {
    "vague names, %": (0.3, 0.3, 0.3, 0.3, 0.3),
    "docstrings without a noun, %": (1, 1, 1, 1, 0),
    "constants with several values": (0, 0, 0, 0, 0),
    "lines over 100, %": (0.5, 0.5, 0.5, 0.5, 0.5),
    "functions over 60 lines": (0, 0, 0, 0, 0),
}
# Names that say nothing of what they hold.
VAGUE_WORDS = (
    "found own made kept there wanted given taken again every ends one many work whole most"
    " least each now known same place places at here such so others left alone alike thing"
    " things stuff what way"
)
VAGUE = frozenset(VAGUE_WORDS.split())
# First words of a docstring that has neither a verb nor a noun there.
NO_NOUN = re.compile(
    r"(Of|So|As|With|Without|By|At|Again|Such|These|Those|There|Why|How|Likewise|In|On|For|From|To"
    r"|Behind|After|Before|Beside|Also|Only|Instead|Then|Here)\b"
)

# Public folders that import private modules of others, each with the reason.
IMPORTED_ELSEWHERE = {
    "npu_kernels.equations <- npu_kernels.formula": "the printed formula",
    "npu_kernels.equations <- npu_kernels.ode": "time series are solved while their equation is looked for",
    "npu_kernels.fitting <- npu_kernels.training": "the loops of training steps",
    "npu_kernels.fitting <- npu_kernels.layers": "the layers that a model calls in turn",
    "npu_kernels.formula <- npu_kernels.layers": "the same",
    "npu_kernels.interop <- npu_kernels.layers": "the same",
    "npu_kernels.interop <- npu_kernels.ode": "the formulas of the operators of time loops",
    "npu_kernels.ode <- npu_kernels.layers": "the layers that a model calls in turn",
    "npu_kernels.training <- npu_kernels.layers": "the same",
    "npu_kernels.ode <- npu_kernels.equations": "`ode.fit`, at its first use",
}
# Private modules that benchmarks and tools import, each with the reason.
MEASURED = {
    "npu_kernels._triton": "kernels, launchers and tables are compiled, tuned and timed",
    "npu_kernels._jobs": "results and checkpoints that survive a kill, progress",
    "npu_kernels.equations._functions": "functions of y, for the criterion",
    "npu_kernels.equations._units": "exponents without units, for the criterion",
    "npu_kernels.equations._problem": "the rows that the criterion sees",
    "npu_kernels.equations._series.simplify": "what one series cannot tell apart",
    "npu_kernels.equations._table.refine": "the deviations that the criterion compares",
    "npu_kernels._operators": "the records of layers, the choice of a backend, the precision",
    "npu_kernels.training._fallbacks": "whether a training is one call of C++",
    "npu_kernels.ode._loop": "the formula that a kernel of a time loop is compared with",
}
# On a page, and in no `__all__`: the base class, which `from npu_kernels import *` leaves out.
BASE_CLASSES = ["npu_kernels.layers.BaseLayer"]
# Tests whose private names are not in tests/private_names.txt: they name modules as data.
UNLISTED = ("tests.project.",)
# Public names without an entry in docs/reference, each with the reason.
WITHOUT_ENTRY = {
    "npu_kernels.certify": "a command: docs/reference/tools.md names it, and --help its arguments",
    "npu_kernels.optim.least_squares": "`ode.fit` uses it; docs/reference/modules.md names it",
}


@functools.cache
def files() -> dict[str, Path]:
    """Dotted name to file."""
    named = {}
    for path in sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def modules(*packages: str) -> dict[str, ast.Module]:
    """Dotted name to syntax tree, of all packages if none is named."""
    chosen = packages or PACKAGES
    return {name: parsed(path) for name, path in files().items() if name.split(".")[0] in chosen}


def imports(tree: ast.Module) -> Iterator[tuple[str, str | None, str]]:
    """The imports, also within functions: module, name in the module, name in this tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None, alias.asname or alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.module, alias.name, alias.asname or alias.name


def imported(tree: ast.Module) -> set[str]:
    """The modules of this repository that the module imports."""
    names = set()
    for module, name, _ in imports(tree):
        inner = f"{module}.{name}"
        names |= {inner} if inner in files() else {module} & files().keys()
    return names


@pytest.mark.parametrize("package", ["npu_kernels", "benchmarks", "tools"])
def test_no_circle_of_imports(package: str) -> None:
    """Imports within functions count; one of the package for its version or layers does not."""
    graph = {name: imported(tree) for name, tree in modules(package).items() if name != package}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done and name in graph:
            for other in sorted(graph[name]):
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def private_doors(name: str, tree: ast.Module) -> list[str]:
    """Private names of other modules of this repository: imported, or used as attributes."""
    doors = []
    aliases: dict[str, str] = {}  # name in this tree -> module
    for module, inner, alias in imports(tree):
        if module.split(".")[0] not in PACKAGES:
            continue
        if inner is not None and f"{module}.{inner}" in files():
            aliases[alias] = f"{module}.{inner}"
        elif inner is not None and inner.startswith("_") and not inner.startswith("__"):
            doors.append(f"{name}: from {module} import {inner}")
        elif inner is None:
            aliases[alias] = module
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
        ):
            owner = ast.unparse(node.value)
            if owner in aliases:
                doors.append(f"{name}: {aliases[owner]}.{node.attr}")
    return doors


@pytest.mark.parametrize("package", ["npu_kernels", "benchmarks", "tools", "examples"])
def test_no_private_door(package: str) -> None:
    doors = [door for name, tree in modules(package).items() for door in private_doors(name, tree)]
    assert doors == []


def test_private_doors_are_seen() -> None:
    code = """
import torch
import npu_kernels.env
from npu_kernels import reference
from npu_kernels._operators import autograd
from npu_kernels._operators.dispatch import _chosen, __doc__
from npu_kernels._operators.ops import LAYERS
torch._C._stuff(autograd._hidden, reference.npu, npu_kernels.env._facts, LAYERS._x)
"""
    assert private_doors("here", ast.parse(code)) == [
        "here: from npu_kernels._operators.dispatch import _chosen",
        "here: npu_kernels._operators.autograd._hidden",
        "here: npu_kernels.env._facts",
    ]


def test_profiles_keep_their_events() -> None:
    """Profiles without `acc_events` warn in torch 2.11, and warnings are errors."""
    calls = [
        (name, node.lineno, any(keyword.arg == "acc_events" for keyword in node.keywords))
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("torch.profiler.profile")
    ]
    assert len(calls) >= 2
    assert [call[:2] for call in calls if not call[2]] == []


def is_private(name: str) -> bool:
    """Whether a part of the dotted name begins with an underscore, `__main__` aside."""
    return any(part.startswith("_") for part in name.replace(".__main__", "").split("."))


def private_imports(importer: str, tree: ast.Module) -> list[str]:
    """The private modules of the package that the importer takes from another folder.

    A folder with an underscore at the top of the package belongs to the whole package.
    """
    names = []
    for name in sorted(imported(tree)):
        folder, private, _ = name.partition("._")
        if private and folder.startswith("npu_kernels"):
            names += [] if f"{importer}.".startswith(f"{folder}.") else [name]
    return names


def test_private_modules_stay_in_their_folder() -> None:
    pairs = {
        " <- ".join(".".join(path.split(".")[:2]) for path in (importer, name))
        for importer, tree in modules("npu_kernels").items()
        for name in private_imports(importer, tree)
    }
    assert pairs == IMPORTED_ELSEWHERE.keys()


def test_benchmarks_and_tools_import_few_private_modules() -> None:
    names = {
        name
        for importer, tree in modules("benchmarks", "tools", "examples").items()
        for name in private_imports(importer, tree)
    }
    folders = {
        name: [folder for folder in MEASURED if f"{name}.".startswith(f"{folder}.")]
        for name in names
    }
    assert [name for name, listed in folders.items() if not listed] == []
    assert {folder for listed in folders.values() for folder in listed} == MEASURED.keys()


def private_names(tree: ast.Module) -> set[str]:
    """The private names of the package that a test imports, also in the text of a process."""
    names = {f"{module}.{name}" if name else module for module, name, _ in imports(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {node.value} if re.fullmatch(r"npu_kernels[\w.]+", node.value) else set()
            texts = re.findall(r"^from (npu_kernels[\w.]*) import (\w+)", node.value, re.M)
            names |= {".".join(pair) for pair in texts}
    return {name for name in names if name.startswith("npu_kernels.") and is_private(name)}


def test_tests_use_few_private_names() -> None:
    """The list says why; an entry stands for all that is in it."""
    lines = (ROOT / "tests" / "private_names.txt").read_text("utf-8").splitlines()
    listed = [line.split("\t")[0] for line in lines]
    assert all(re.fullmatch(r"npu_kernels[\w.]+\t\S.*", line) for line in lines)
    used = {
        name
        for importer, tree in modules("tests").items()
        if not importer.startswith(UNLISTED)
        for name in private_names(tree)
    }
    entries = {name: [e for e in listed if f"{name}.".startswith(f"{e}.")] for name in used}
    assert sorted(name for name, owners in entries.items() if not owners) == []
    assert sorted({entry for owners in entries.values() for entry in owners}) == listed


def test_the_contract_uses_public_names_alone() -> None:
    """The helpers of tests that it imports do the same."""
    trees = modules("tests")
    names = {name for name in trees if name.startswith("tests.contract.")}
    names |= {helper for name in names for helper in imported(trees[name]) if "tests." in helper}
    assert "tests.support.time_series" in names
    private = {name: private_names(trees[name]) for name in names}
    assert [name for name in names if private[name] or private_doors(name, trees[name])] == []


def test_programs_start_on_the_last_lines() -> None:
    """What a module defines after its `if __name__ == "__main__"` the program lacks."""
    early = [
        name
        for name, tree in modules().items()
        for node in tree.body[:-1]
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
    ]
    assert early == []


def test_docstrings_begin_with_one_line() -> None:
    """A summary that goes on in the next line is two sentences, or one that is too long."""
    long_summaries = []
    for name, tree in modules("npu_kernels").items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                summary = (ast.get_docstring(node) or "").split("\n\n")[0]
                long_summaries += [f"{name}: {summary}"] if "\n" in summary else []
    assert long_summaries == []


# ---- what is public ---------------------------------------------------------------------------


def public_values() -> dict[str, object]:
    """The functions and classes in the `__all__` of the public modules, by dotted name."""
    values = {}
    for name in files():
        if name.split(".")[0] == "npu_kernels" and not is_private(name) and "__main__" not in name:
            module = importlib.import_module(name)
            assert hasattr(module, "__all__"), name
            for inner in module.__all__:
                value = getattr(module, inner)
                if inspect.isclass(value) or inspect.isroutine(value):
                    values[f"{name}.{inner}"] = value
    return values


def documented() -> dict[str, object]:
    """The functions and classes that a page of docs/reference has, by dotted name."""
    text = "".join(page.read_text("utf-8") for page in (ROOT / "docs/reference").glob("*.md"))
    values = {}
    for name in re.findall(r"^\.\. auto(?:function|class):: (\S+)", text, re.M):
        module, _, last = name.rpartition(".")
        values[name] = getattr(importlib.import_module(module), last)
    assert values
    return values


def test_every_public_name_is_on_a_reference_page() -> None:
    """The name of a module in `WITHOUT_ENTRY` stands for all of its names."""
    pages = list(documented().values())
    missing = [name for name, value in public_values().items() if value not in pages]
    folders = {name: name.rpartition(".")[0] for name in missing}
    assert [name for name, folder in folders.items() if folder not in WITHOUT_ENTRY] == []
    assert set(folders.values()) == WITHOUT_ENTRY.keys()


def test_every_public_module_has_its_line() -> None:
    page = (ROOT / "docs" / "reference" / "modules.md").read_text("utf-8")
    public = [name for name in files() if name.startswith("npu_kernels") and not is_private(name)]
    listed = re.findall(r"^   (npu_kernels[\w.]*)$", page, re.M)
    assert sorted(listed) == sorted(name for name in public if not name.endswith("__main__"))


def test_only_public_names_are_on_a_reference_page() -> None:
    values = list(public_values().values())
    names = documented()
    private = [name for name in names if is_private(name) or names[name] not in values]
    assert private == BASE_CLASSES


# ---- words and lengths ------------------------------------------------------------------------


QUOTES = re.compile(r"tests\.mutants\.(cpp|python|triton)")  # quotations of source, a mutant a line


def names_bound(tree: ast.Module) -> list[str]:
    """The names of variables and arguments, once for each place that binds one."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id.strip("_"))
        elif isinstance(node, ast.arg):
            names.append(node.arg.strip("_"))
    return names


def docstrings(tree: ast.Module) -> list[str]:
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return [text for node in nodes if (text := ast.get_docstring(node))]


def constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name and value of the module's constants that are no text."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                name = target.id.strip("_") if isinstance(target, ast.Name) else ""
                if name.isupper() and not isinstance(node.value.value, str):
                    yield name, repr(node.value.value)


def long_functions(tree: ast.Module) -> list[str]:
    """The functions of more than 60 lines, without signature and docstring."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            if body and (body[-1].end_lineno or 0) - body[0].lineno >= 60:
                names.append(node.name)
    return names


def measures(sources: list[str]) -> dict[str, float]:
    """The measures of `LIMITS`, of the text of some modules."""
    trees = [ast.parse(source) for source in sources]
    names = [name for tree in trees for name in names_bound(tree)]
    texts = [text for tree in trees for text in docstrings(tree)]
    values = collections.defaultdict(set)
    for tree in trees:
        for name, value in constants(tree):
            values[name].add(value)
    lines = [line for source in sources for line in source.splitlines()]
    return {
        "vague names, %": 100 * sum(name in VAGUE for name in names) / max(len(names), 1),
        "docstrings without a noun, %": 100
        * sum(bool(NO_NOUN.match(text)) for text in texts)
        / max(len(texts), 1),
        "constants with several values": sum(len(several) > 1 for several in values.values()),
        "lines over 100, %": 100 * sum(len(line) > 100 for line in lines) / max(len(lines), 1),
        "functions over 60 lines": sum(len(long_functions(tree)) for tree in trees),
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_words_and_lengths(package: str) -> None:
    paths = [
        path
        for name, path in files().items()
        if name.split(".")[0] == package and not QUOTES.match(name)
    ]
    numbers = measures([path.read_text("utf-8") for path in paths])
    column = PACKAGES.index(package)
    limits = {measure: row[column] for measure, row in LIMITS.items()}
    assert {measure: n for measure, n in numbers.items() if n > limits[measure]} == {}


def test_words_and_lengths_are_measured() -> None:
    long = "def long():\n" + "    pass\n" * 61
    source = f'''
STEPS = 1
NAME = "a"
def function(found, rows):
    """Of rows."""
    for row in rows:
        pass  {"#" * 100}
def other():
    """Return nothing."""
{long}'''
    assert measures([source, "STEPS = 2\nNAME = 'b'\n"]) == {
        "vague names, %": pytest.approx(100 / 7),
        "docstrings without a noun, %": 50,
        "constants with several values": 1,
        "lines over 100, %": pytest.approx(100 / 73),
        "functions over 60 lines": 1,
    }


# ---- single rules -----------------------------------------------------------------------------


def test_patterns_and_paths_name_files() -> None:
    """The data of the wheel, and the tests that the sanitizers run."""
    settings = (ROOT / "pyproject.toml").read_text("utf-8")
    (patterns,) = re.findall(r"^npu_kernels = \[(.*?)\]", settings, re.M)
    names = [f"npu_kernels/{pattern}" for pattern in re.findall(r'"(.+?)"', patterns)]
    assert len(names) > 1
    assert [name for name in [*names, *FILES] if not list(ROOT.glob(name))] == []
