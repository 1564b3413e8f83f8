"""One run over some mutants: what is known already, what is tried, the table."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.mutants.workplace import BrokenError, Workplace, isa_of

KILLED, SURVIVED, BROKEN = "killed", "survived", "broken"
Result = dict[str, str | float]


class Session:
    """Mutants of the tree `root`, tried in `folder`. Results are written as they come."""

    def __init__(self, root: Path, folder: Path, mutants: list[Mutant]) -> None:
        self.root, self.folder = root, folder
        # One file after the other: a change then costs that file's compilation, and not that of the
        # one before too.
        self.mutants = sorted(mutants, key=lambda m: (m.language, m.isa, m.file, m.tests))
        self.results: dict[str, Result] = {}  # by name
        self.seconds: dict[str, float] = {}  # what a test took on the unchanged code
        self.passed: set[tuple[str, str]] = (
            set()
        )  # tests of the unchanged code, by what is compiled
        self.place = Workplace(root, folder)
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, again: bool = False) -> int:
        """Try what has no result yet; the exit code."""
        for mutant in self.mutants:
            mutant.check(self.root)
        self.mutants = [mutant for mutant in self.mutants if self._can_run(mutant)]
        known = {} if again else self._known()
        todo = [mutant for mutant in self.mutants if mutant.name not in known]
        self.results = known
        if known:
            print(f"{len(known)} of {len(self.mutants)} were tried before")
        if todo:
            self.place.synchronise()
        for mutant in todo:
            begin = time.perf_counter()
            verdict, by = self._try(mutant)
            seconds = round(time.perf_counter() - begin, 1)
            self._keep(
                {
                    "name": mutant.name,
                    "key": self._key(mutant),
                    "verdict": verdict,
                    "by": by,
                    "seconds": seconds,
                }
            )
            count = f"{len(self.results)}/{len(self.mutants)}"
            print(
                f"{count:>9}  {verdict:<8}  {mutant.language:<6}  {mutant.name}  ({seconds} s; {by})",
                flush=True,
            )
        return self._report()

    def summary(self) -> int:
        """Print, of every file, how many were tried and which are left; 0 where all were, and all
        were noticed."""
        known = self._known()
        for file in dict.fromkeys(mutant.file for mutant in self.mutants):
            names = [mutant.name for mutant in self.mutants if mutant.file == file]
            counts = Counter(str(known[name]["verdict"]) for name in names if name in known)
            left = [name for name in names if name not in known]
            print(
                f"{counts[KILLED]:>4} killed{counts[SURVIVED]:>4} survived{len(left):>4} left  {file}"
            )
            for name in left if len(left) < len(names) else ():
                print(f"{'':<30}left: {name}")
        survived = [name for name, result in known.items() if result["verdict"] == SURVIVED]
        print(
            f"{len(known)} of {len(self.mutants)} were tried",
            *(f"survived: {name}" for name in survived),
            sep="\n",
        )
        return 0 if len(known) == len(self.mutants) and not survived else 1

    def _can_run(self, mutant: Mutant) -> bool:
        try:
            if mutant.language == "cpp":
                isa_of(mutant)
        except BrokenError as error:
            print(f"left out: {mutant.name} ({error})")
            return False
        return True

    def _try(self, mutant: Mutant) -> tuple[str, str]:
        try:
            for test in mutant.tests:
                self._try_unchanged(mutant, test)
                self.place.mutate(mutant)
                if self.place.notices(mutant, test, limit=60 + 10 * self.seconds[test]):
                    return KILLED, test
            return SURVIVED, "no test"
        except BrokenError as error:
            return BROKEN, str(error)
        finally:
            self.place.restore(mutant)

    def _try_unchanged(self, mutant: Mutant, test: str) -> None:
        """A test that fails on the unchanged code proves nothing."""
        compiled = (test, mutant.isa if mutant.language == "cpp" else "python")
        if compiled in self.passed:
            return
        begin = time.perf_counter()
        self.place.restore(mutant)
        if self.place.notices(mutant, test):
            raise BrokenError(f"the unchanged code fails {test}")
        self.passed.add(compiled)
        self.seconds[test] = max(time.perf_counter() - begin, self.seconds.get(test, 0.0))

    # ---- results ----------------------------------------------------------------------------

    def _key(self, mutant: Mutant) -> str:
        digest = hashlib.blake2b(repr(mutant).encode(), digest_size=12)
        for file in sorted({mutant.file, *mutant.test_files()}):
            path = self.root / file
            for part in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                digest.update(part.read_bytes())
        return digest.hexdigest()

    def _known(self) -> dict[str, Result]:
        path = self.folder / "results.jsonl"
        found = (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )
        keys = {mutant.name: self._key(mutant) for mutant in self.mutants}
        return {
            r["name"]: r
            for r in found
            if keys.get(r["name"]) == r["key"] and r["verdict"] != BROKEN
        }

    def _keep(self, result: Result) -> None:
        self.results[str(result["name"])] = result
        with (self.folder / "results.jsonl").open("a") as file:
            file.write(json.dumps(result) + "\n")

    def _report(self) -> int:
        print(f"\n{'':<10}{'mutants':>8}{KILLED:>10}{SURVIVED:>10}{BROKEN:>10}")
        for language in sorted({mutant.language for mutant in self.mutants}):
            names = [mutant.name for mutant in self.mutants if mutant.language == language]
            counts = Counter(str(self.results[name]["verdict"]) for name in names)
            print(
                f"{language:<10}{len(names):>8}{counts[KILLED]:>10}{counts[SURVIVED]:>10}{counts[BROKEN]:>10}"
            )
        bad = [r for r in self.results.values() if r["verdict"] != KILLED]
        for result in bad:
            print(f"{result['verdict']}: {result['name']} ({result['by']})")
        return 1 if bad else 0
