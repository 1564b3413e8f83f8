"""Repeated calls of launchers: the same launches in less processor time, and only where nothing can
be seen of it.

The checks are in `mocked`, whose process has launches that do nothing and no interpreter.
"""

import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

CHECKS = (
    "check_the_same_launches", "check_nothing_is_compiled_for_a_last_batch",
    "check_what_must_not_be_repeated", "check_what_makes_another_call",
    "check_wrong_operands_are_still_errors", "check_steps_of_layers",
    "check_who_wants_to_see_operators", "check_kernels_of_graphs_are_their_threads",
    "check_the_gradient_arrives_in_any_form",
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
    results = dict(json.loads(line) for line in _run("--checks") if line.startswith("["))
    assert results == dict.fromkeys(CHECKS, "")


def test_processor_time_of_a_step(record_property: Callable[[str, object], None]) -> None:
    """Ratios, which a busy machine changes little; docs/gpus.md has the times of a quiet one."""
    times = json.loads(_run()[-1])
    record_property("times", times)
    print(times)
    assert times["small"] < 0.6 * times["small before"], times
    assert times["tiled"] < 0.55 * times["tiled before"], times
    assert times["small"] < 3 * times["least"], times


@pytest.mark.parametrize("obstacle", ["address", "twice", "device"])
def test_a_later_call_without_its_obstacle_is_recorded(
    obstacle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call whose recording would serve no other call leaves the recording to a later one."""
    from npu_kernels._triton import tape

    tensors, device = (torch.rand(4, 4), torch.rand(4, 4)), 0
    others = {"address": (torch.rand(17)[1:].view(4, 4), tensors[1]), "twice": tensors[:1] * 2}
    recorded: list[Any] = []

    def record(self: tape.Repeated, key: Any, arguments: Any) -> Any:
        recorded.append(arguments)
        return None, None

    active = SimpleNamespace(get_current_device=lambda: device)
    monkeypatch.setattr(tape, "driver", SimpleNamespace(active=active))
    monkeypatch.setattr(tape, "_undisturbed", lambda: True)
    monkeypatch.setattr(tape.Repeated, "_record", record)
    if obstacle == "device":  # else a tensor of the CPU is on the current device
        monkeypatch.setattr(tape, "_CPU", None)
    repeated = tape.Repeated(lambda *_: None, 2)
    for _ in range(3):
        repeated(*others.get(obstacle, tensors), 1.0)
    assert not recorded
    device = tensors[0].get_device()
    repeated(*tensors, 1.0)
    assert recorded == [(*tensors, 1.0)]


def test_tensors_share_memory_that_nobody_needs() -> None:
    """Tensors that live at once have places of their own; a later one takes an earlier one's."""
    from npu_kernels._triton.tape import _packed

    assert _packed([]) == ([], 0)
    assert _packed([(512, 0, 1), (1024, 2, 3), (512, 1, 2)]) == ([0, 0, 1024], 1536)
    draw = random.Random(0)
    for _ in range(200):
        lives = []
        for _ in range(draw.randrange(1, 12)):
            first = draw.randrange(8)
            lives.append((512 * draw.randrange(6), first, draw.randrange(first, 9)))
        offsets, total = _packed(lives)
        assert total == max(
            offset + size for offset, (size, _, _) in zip(offsets, lives, strict=True)
        )
        assert total <= sum(size for size, _, _ in lives)
        for a, b in itertools.combinations(zip(offsets, lives, strict=True), 2):
            (offset_a, (size_a, first_a, last_a)), (offset_b, (size_b, first_b, last_b)) = a, b
            if first_a <= last_b and first_b <= last_a:
                assert offset_a + size_a <= offset_b or offset_b + size_b <= offset_a or not (
                    size_a and size_b
                )  # fmt: skip
