"""Repeated calls of launchers: the same launches in less processor time, and only where nothing can
be seen of it.

The checks are in `mocked`, whose process has launches that do nothing and no interpreter.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("triton")

CHECKS = (
    "check_the_same_launches", "check_what_must_not_be_repeated", "check_what_makes_another_call",
    "check_wrong_operands_are_still_errors", "check_steps_of_layers",
    "check_who_wants_to_see_operators", "check_the_gradient_arrives_in_any_form",
    "check_a_launch_in_another_way", "check_another_triton",
)  # fmt: skip


def _run(*arguments: str) -> list[str]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.triton.mocked", *arguments]
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.splitlines()


def test_checks() -> None:
    found = dict(json.loads(line) for line in _run("--checks") if line.startswith("["))
    assert found == dict.fromkeys(CHECKS, "")


def test_processor_time_of_a_step(record_property: Callable[[str, object], None]) -> None:
    """Ratios, which a busy machine changes little; docs/gpus.md has the times of a quiet one."""
    times = json.loads(_run()[-1])
    record_property("times", times)
    print(times)
    assert times["small"] < 0.6 * times["small before"], times
    assert times["tiled"] < 0.55 * times["tiled before"], times
    assert times["small"] < 3 * times["least"], times
