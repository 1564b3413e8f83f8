"""The versions of what the tests need: every one is fixed, and within the ranges that users may
have."""

import importlib.metadata
import platform
import re
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.building import ROOT

FILES = sorted(ROOT.glob("requirements*.txt"))
# torch's version fixes those of its packages for CUDA.
OF_TORCH = re.compile(r"(nvidia|cuda)-.*")
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


def lines(name: str) -> list[str]:
    text = (ROOT / name).read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def constraints(python: str) -> dict[str, Requirement]:
    """The fixed versions for one version of Python on Linux, by the packages' names."""
    requirements = map(Requirement, lines("constraints.txt"))
    environment = {"python_version": python, "sys_platform": "linux"}
    applicable = [r for r in requirements if not r.marker or r.marker.evaluate(environment)]
    names = [canonicalize_name(requirement.name) for requirement in applicable]
    assert len(names) == len(set(names)), "a package has two versions"
    return dict(zip(names, applicable, strict=True))


def needs(name: str) -> Iterator[str]:
    """The packages that an installed one needs here, without its extras."""
    try:
        texts = importlib.metadata.requires(name) or []
    except (
        importlib.metadata.PackageNotFoundError
    ):  # another platform's, or one that `make install` does not install
        return
    for requirement in map(Requirement, texts):
        if not requirement.marker or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name)


def version_of(constraint: Requirement) -> str:
    (specifier,) = constraint.specifier
    assert specifier.operator == "=="
    assert "*" not in specifier.version
    return specifier.version


@pytest.mark.parametrize("python", PYTHONS)
def test_each_requirement_has_one_version(python: str) -> None:
    fixed = constraints(python)
    for constraint in fixed.values():
        version_of(constraint)
    for file in FILES:
        first, *rest = lines(file.name)
        assert first == "-c constraints.txt", file.name
        requirements = [Requirement(line) for line in rest]
        assert [str(r) for r in requirements if r.specifier] == [], (
            "versions stand in constraints.txt"
        )
        assert [r.name for r in requirements if canonicalize_name(r.name) not in fixed] == []


def test_what_requirements_need_has_a_version_too() -> None:
    fixed = constraints(".".join(platform.python_version_tuple()[:2]))
    todo = [
        canonicalize_name(Requirement(line).name) for file in FILES for line in lines(file.name)[1:]
    ]
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in seen and not OF_TORCH.fullmatch(name):
            seen.add(name)
            todo.extend(needs(name))
    assert len(seen) > 50
    assert sorted(seen - fixed.keys()) == []


def test_the_versions_are_in_the_ranges_of_the_project() -> None:
    text = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")
    (dependencies,) = re.findall(r"^dependencies = \[(.*)\]", text[0], re.M)
    ranges = re.findall(r'"([a-z][\w-]*>=[\w.]+)"', dependencies + text[2].partition("\n[")[0])
    assert {"numpy", "torch", "tqdm", "scikit-learn"} <= {
        Requirement(entry).name for entry in ranges
    }
    for requirement in map(Requirement, ranges):
        for python in PYTHONS:
            constraint = constraints(python)[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version_of(constraint)), (
                f"{requirement}: {constraint}"
            )
