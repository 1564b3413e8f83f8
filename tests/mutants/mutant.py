"""A mutant: one change to the code that a test must notice."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

# The core's unit tests.
EXECUTABLES = {
    "kernels": "kernels_test",
    "ode": "ode_test",
    "ode_adaptive": "ode_adaptive_test",
    "tiles": "tiles_test",
    "threads": "threads_test",
    "vector_math": "vector_math_test_avx512",
}


class Mutant(NamedTuple):
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
        return "cpp" if self.file.startswith("csrc/") else "triton"

    def apply(self, code: str) -> str:
        """The code with the change; ValueError where the list has gone stale."""
        found = code.count(self.text)
        if found != 1:
            rule = f"the text must be found once in {self.file}, found {found} times"
            raise ValueError(f"{self.name}: {rule}")
        changed = code.replace(self.text, self.replacement)
        if self.file.endswith(".py"):
            compile(changed, self.file, "exec")
        elif _meaning(changed) == _meaning(code):
            raise ValueError(f"{self.name}: the replacement must change the code of {self.file}")
        return changed

    def check(self, root: Path) -> None:
        """Raise ValueError where it does not apply to the tree, or names tests that are not
        there."""
        self.apply((root / self.file).read_text())
        words = [word for test in self.tests for word in shlex.split(test)]
        for file in (word.partition("::")[0] for word in words if word.startswith("tests/")):
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


def _meaning(code: str) -> str:
    """The code without C++'s comments and blanks."""
    return re.sub(r"\s+", " ", re.sub(r"//[^\n]*|/\*.*?\*/", " ", code, flags=re.DOTALL))
