"""The rooms of the house: no circles of imports, no private doors, one place that names the experiments."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.paper.registry import EXPERIMENTS

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = "npu_kernels", "benchmarks", "tools", "tests", "examples"


@functools.cache
def modules() -> dict[str, tuple[Path, ast.Module]]:
    """Dotted name to file and syntax tree."""
    found = {}
    for path in sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path, ast.parse(path.read_text(encoding="utf-8"))
    return found


def imports(tree: ast.Module) -> Iterator[tuple[str, str | None, str]]:
    """(module, name in it, what it is called here), of every import statement, also within functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None, alias.asname or alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.module, alias.name, alias.asname or alias.name


def imported(tree: ast.Module) -> set[str]:
    """The modules of this repository that one imports."""
    found = set()
    for module, name, _ in imports(tree):
        inner = f"{module}.{name}"
        found |= {inner} if inner in modules() else {module} & modules().keys()
    return found


@pytest.mark.parametrize("package", ["npu_kernels", "benchmarks", "tools"])
def test_no_circle_of_imports(package: str) -> None:
    """Also not through imports within functions. Who asks the package for its version or its layers closes none."""
    graph = {
        name: imported(tree)
        for name, (_, tree) in modules().items()
        if name.startswith(f"{package}.")
    }
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join([*way[way.index(name) :], name])
        if name not in done and name in graph:
            for other in sorted(graph[name]):
                visit(other, (*way, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def private_doors(name: str, tree: ast.Module) -> list[str]:
    """Private names of other modules of this repository: imported, or looked up in an imported module."""
    found = []
    known: dict[str, str] = {}  # what a module is called here
    for module, inner, alias in imports(tree):
        if module.split(".")[0] not in PACKAGES:
            continue
        if inner is not None and f"{module}.{inner}" in modules():
            known[alias] = f"{module}.{inner}"
        elif inner is not None and inner.startswith("_") and not inner.startswith("__"):
            found.append(f"{name}: from {module} import {inner}")
        elif inner is None:
            known[alias] = module
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
        ):
            owner = ast.unparse(node.value)
            if owner in known:
                found.append(f"{name}: {known[owner]}.{node.attr}")
    return found


@pytest.mark.parametrize("package", ["npu_kernels", "benchmarks", "tools", "examples"])
def test_no_private_door(package: str) -> None:
    found = [
        door
        for name, (_, tree) in modules().items()
        if name.split(".")[0] == package
        for door in private_doors(name, tree)
    ]
    assert found == []


def test_private_doors_are_seen() -> None:
    """The rule itself: what would be found, and what is allowed."""
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


def test_only_the_registry_names_an_experiment() -> None:
    """Of what the paper's experiments share, nothing knows one of them: neither its name nor its module."""
    folder = ROOT / "benchmarks" / "paper"
    rooms = {name.replace("-", "_") for name in EXPERIMENTS}
    names = "|".join([*rooms, *(name for name in EXPERIMENTS if "-" in name)])
    for path in sorted(folder.glob("*.py")):
        if path.stem in {"__init__", "registry"} | rooms:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not {f"benchmarks.paper.{room}" for room in rooms} & imported(tree), path.name
        texts = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        told = {
            ast.get_docstring(node, clean=False)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module)
        }
        assert not [text for text in texts if text not in told and re.fullmatch(names, text)], (
            path.name
        )


def test_functions_are_short() -> None:
    """At most 60 lines, without the signature and the docstring; what is longer has parts that deserve a name."""
    found: list[str] = []
    for path, tree in modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                if body and (node.end_lineno or 0) - body[0].lineno >= 60:
                    found.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert found == []


def test_only_public_faces_say_what_a_neural_power_unit_is() -> None:
    """Every other module's first line says what that file is."""
    faces = {
        *("npu_kernels", "npu_kernels.layers"),
        *(
            f"npu_kernels.{name}"
            for name in ("certify", "env", "equations", "fitting", "formula", "functional")
        ),
        *(
            f"npu_kernels.{name}"
            for name in ("interop", "ode", "optim", "reference", "sharding", "trace", "training")
        ),
    }
    said = {
        name: (ast.get_docstring(tree) or "").partition("\n")[0]
        for name, (_, tree) in modules().items()
    }
    assert {name for name, line in said.items() if "Neural Power Unit, a layer" in line} <= faces
    assert "Neural Power Unit, a layer" in said["npu_kernels"]
    assert [name for name, line in said.items() if not line and not name.startswith("tests")] == []


def test_only_one_place_asks_torch_for_the_matmul_precision() -> None:
    """torch's own answer is an error once a device's setting differs: `npu_kernels._operators.precision` knows both settings."""
    asking = {
        name
        for name, (path, _) in modules().items()
        if "get_float32_matmul_precision" in path.read_text("utf-8")
    }
    assert {name for name in asking if not name.startswith("tests.")} == {
        "npu_kernels._operators.precision"
    }
