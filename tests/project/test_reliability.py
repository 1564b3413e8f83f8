"""Every test that docs/reliability.md names is there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()


def _tests(path: Path) -> set[str]:
    return {
        node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    }


def test_every_named_test_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 60
    missing = [f"{path}::{name}" for path, name in named if name not in _tests(ROOT / path)]
    assert not missing
    files = re.findall(r"`(csrc/[\w/]+\.cpp)`", PAGE)
    assert files
    assert all((ROOT / path).exists() for path in files)


def test_every_promise_names_a_test() -> None:
    promises = [p for p in re.split(r"\n(?=- |\n)", PAGE) if p.startswith("- ")]
    assert len(promises) > 25
    assert not [p for p in promises if "::" not in p]
