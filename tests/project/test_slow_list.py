"""The list of slow tests names tests that are there, and is written from what tests take."""

import ast
import math

from tests.slow import LIST, LISTED, STAYS, lines, read
from tests.support.building import ROOT


def test_its_tests_are_there() -> None:
    slow, stay = read()
    functions = {
        file: {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for file in {name.split("::")[0] for name in slow | stay}
        for tree in [ast.parse((ROOT / file).read_text())]
    }
    for name in slow | stay:
        file, _, function = name.split("[")[0].partition("::")
        assert not function or function in functions[file], name
    assert all(name.split("::")[0] in slow for name in stay)
    assert lines({}, slow, stay) == LIST.read_text().splitlines()


def test_functions_and_files_stand_for_their_slow_tests() -> None:
    slow, quick = LISTED + 0.1, LISTED - 0.1
    taken = {
        "a.py::test_quick": quick,
        "a.py::test_slow": slow,
        "a.py::test_cases[1]": slow,
        "a.py::test_cases[2]": slow,
        "a.py::test_some[1]": slow,
        "a.py::test_some[2]": quick,
        "b.py::test_1": slow + 1,
        "b.py::test_2": slow,  # the quickest of a slow file stays
        "c.py::test_1": STAYS + 1,
        "d.py::test_imports": math.nan,  # as the list has it
        "d.py::test_quick": quick,
    }
    slow_before = {"a.py::test_quick", "b.py::test_3", "d.py::test_imports", "e.py"}
    assert lines(taken, slow_before, {"e.py::test_1"}) == [
        "a.py::test_cases",
        "a.py::test_slow",
        "a.py::test_some[1]",
        "b.py",
        "+b.py::test_2",
        "c.py",
        "d.py::test_imports",
        "e.py",
        "+e.py::test_1",
    ]
