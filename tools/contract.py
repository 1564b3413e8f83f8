"""The contract of the package, written anew: ``python -m tools.contract`` prints what changes.

The files are `signatures.json`, `results.json` and `bad_arguments.txt` in `tests/contract`.
"""

import argparse
import sys
from typing import Any

import torch

from tests.contract import messages, results, signatures
from tests.contract.cases import CASES


def main() -> int:
    """Write the files; a call that raises keeps its results, and makes the exit status 1."""
    argparse.ArgumentParser("python -m tools.contract", None, __doc__).parse_args()
    torch.set_num_threads(1)
    names = signatures.signatures()
    old_names = signatures.read() if signatures.FILE.exists() else {}
    for line in signatures.differences(old_names, names):
        print(line)
    signatures.write(names)
    for line in messages.write():
        print(line)
    old: dict[str, Any] = results.read() if results.FILE.exists() else {"cases": {}}
    is_same, failed, new = old.get("processor") == results.processor(), 0, {}
    if not is_same:
        print(f"The old bits are those of another processor: {old.get('processor')}")
    for name in CASES:
        before = old["cases"].get(name, {})
        try:
            new[name] = results.computed(name)
        except Exception as error:
            failed += 1
            new[name] = before
            print(f"{name} raises {type(error).__name__}: {error}")
        for line in results.differences(before, new[name], is_same):
            print(f"{name}, {line}", flush=True)
    for name in old["cases"].keys() - CASES.keys():
        print(f"removed {name}")
    results.write(new)
    print(f"{len(names)} names and {len(new)} results are written, {failed} raised an error.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
