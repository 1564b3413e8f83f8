"""A mutant: one change to the code that a test must notice."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

# The core's unit tests.
EXECUTABLES = {
    "kernels": "kernels_test",
    "ode": "ode_test",
    "ode_adaptive": "ode_adaptive_test",
    "tiles": "tiles_test",
    "threads": "threads_test",
    "vector_math": "vector_math_test_avx512",
}


@dataclass(frozen=True)
class Mutant:
    """`text`, which is found exactly once in `file`, becomes `replacement`; one of `tests` must
    fail then.

    A test is one of the core's (`EXECUTABLES`), alone or with a limit on the work of one case,
    ``kernels 25000``, or pytest's arguments: ``tests/test_x.py -k word``. They run in their order
    until one fails. `isa` is the instruction set that a C++ mutant is compiled for; without one,
    the widest one of this processor.
    """

    name: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]
    isa: str = ""

    @property
    def language(self) -> str:
        if self.file.startswith("csrc/"):
            return "cpp"
        return "triton" if self.file.startswith("npu_kernels/_triton/") else "python"

    def test_files(self) -> list[str]:
        """The files of its pytest tests."""
        words = [word for test in self.tests for word in shlex.split(test)]
        return [word.partition("::")[0] for word in words if word.startswith("tests/")]

    def apply(self, code: str) -> str:
        """The code with the change; ValueError where the list has gone stale."""
        found = code.count(self.text)
        if found != 1:
            raise ValueError(
                f"{self.name}: the text must be found once in {self.file}, found {found} times"
            )
        changed = code.replace(self.text, self.replacement)
        try:
            same = _meaning(self.file, changed) == _meaning(self.file, code)
        except SyntaxError as error:
            raise ValueError(
                f"{self.name}: the replacement must be valid Python, got {error}"
            ) from None
        if same:
            raise ValueError(f"{self.name}: the replacement must change the code of {self.file}")
        return changed

    def check(self, root: Path) -> None:
        """Raise ValueError where it does not apply to the tree, or names tests that are not
        there."""
        self.apply((root / self.file).read_text())
        if not self.tests:
            raise ValueError(f"{self.name}: names no tests")
        for file in self.test_files():
            if not (root / file).exists():
                raise ValueError(f"{self.name}: there is no {file}")


def mutants(
    file: str, tests: str | tuple[str, ...], changes: dict[str, tuple[str, str]], isa: str = ""
) -> list[Mutant]:
    """Mutants of one file that the same tests should notice, by name: what is replaced, and by
    what."""
    tests = (tests,) if isinstance(tests, str) else tests
    return [
        Mutant(name, file, text, replacement, tests, isa)
        for name, (text, replacement) in changes.items()
    ]


@functools.lru_cache
def _meaning(file: str, code: str) -> str:
    """The code without what no compiler reads. Raises SyntaxError for Python that is none."""
    if file.endswith(".py"):
        return ast.dump(ast.parse(code))
    return re.sub(r"\s+", " ", re.sub(r"//[^\n]*|/\*.*?\*/", " ", code, flags=re.DOTALL))
