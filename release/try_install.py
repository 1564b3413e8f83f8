"""Installs a wheel or an sdist as a user would, into an empty environment, and checks what is there then.

    python release/try_install.py dist/npu_kernels-*.whl --torch 2.10.0 --python python3.10 --row release/runs.jsonl
    python release/try_install.py dist/npu_kernels-*.tar.gz --torch 2.13.0

The environment gets torch, then the file by `pip install`, in pip's isolated build where it is an sdist. What runs then
is release/check_install.py, which gets the further arguments.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CHECK = Path(__file__).resolve().with_name("check_install.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--torch", required=True, help="the release to install first")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the new environment")
    arguments, rest = parser.parse_known_args()
    file = arguments.file.resolve(strict=True)
    if "--row" in rest:
        place = rest.index("--row") + 1
        rest[place] = str(Path(rest[place]).resolve())
    environment = {**os.environ, "PYTHONPATH": "", "NPU_KERNELS_BUILD": ""}
    with tempfile.TemporaryDirectory() as folder:

        def call(*command: object) -> None:
            print("+", *command, flush=True)
            subprocess.run([str(word) for word in command], check=True, cwd=folder, env=environment)

        call(arguments.python, "-m", "venv", "environment")
        python = Path(folder) / "environment" / "bin" / "python"
        call(python, "-m", "pip", "install", "-q", f"torch=={arguments.torch}")
        call(python, "-m", "pip", "install", "-v" if file.suffix == ".gz" else "-q", file)
        call(python, CHECK, *rest)


if __name__ == "__main__":
    main()
