"""The loops around matrix units' instructions, and the budgets of large layers' kernels.

For sm_90 and sm_100, each large kernel must do at least :data:`GAIN` times the multiply-adds of the
fused kernel for the same target, for each instruction that it issues; wait at most once for a
product of depth DEPTH; and have shared memory for two stages.

Multiply-adds are those of the layer's formula: for each row, input and output two with log r and
two with the mask forward, two in backward_x, two and two in backward_w. The number of products of
narrower numbers that make them (six and three in the fused kernels, three and two here) does not
count.
"""

from __future__ import annotations

import collections
import math
import re
from typing import Any

GAIN = 5
TARGETS = ("sm_90", "sm_100")
TILE = 128  # columns of a tile of the large kernels
DEEP = 16  # of an instruction of the matrix units
# How often the large kernels pass each loop, for a product of values with log r and another with
# the mask.
TURNS = {"forward": (3, 2), "backward_x": (1,), "backward_w": (3, 2)}
# The multiply-adds of a row, an input and an output in a step of the fused kernels.
TERMS = {"forward": 4, "backward_x": 2, "backward_w": 4}
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_]+)(.*)")
LABEL = re.compile(r"^(\.L_\w+):")
JUMP = re.compile(r"`\((\.L_\w+)\)")
MATRIX = ("HGMMA", "UTCHMMA", "HMMA")


def loops(text: str) -> list[dict[str, int]]:
    """The shortest loop around each matrix instruction of a disassembly.

    Counts its instructions, those of the matrix units, and its waits for them: on sm_90 an
    instruction that waits for earlier ones, on sm_100 one that makes a barrier wait for them.
    """
    names: list[str] = []
    labels: dict[str, int] = {}
    jumps: list[tuple[int, str]] = []
    for line in text.splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(names)
        elif match := INSTRUCTION.match(line):
            name, operands = match.groups()
            if name == "BRA" and (target := JUMP.search(operands)):
                jumps.append((len(names), target[1]))
            names.append("WAIT" if name == "UTCBAR" or operands.startswith(".DEPBAR") else name)
    backward = [(labels[to], last) for last, to in jumps if labels.get(to, last + 1) <= last]
    shortest = set()
    for index, name in enumerate(names):
        around = [(last - first, first, last) for first, last in backward if first <= index <= last]
        if name in MATRIX and around:
            shortest.add(min(around)[1:])
    result = []
    for first, last in sorted(shortest):
        count = collections.Counter(names[first : last + 1])
        matrix = sum(count[name] for name in MATRIX)
        result.append({"instructions": last - first + 1, "matrix": matrix, "waits": count["WAIT"]})
    return result


def _part(row: dict[str, Any]) -> str | None:
    """The part of an NPU on tiles that a kernel computes: forward, backward_x or backward_w."""
    match = re.fullmatch(r"npu_(?:large_)?(forward|backward_x|backward_w)", row.get("kernel", ""))
    return match[1] if match else None


def _main_loops(row: dict[str, Any]) -> list[dict[str, int]]:
    """The main loops of a large kernel.

    That of backward_x has three products. Those of the others have one: the forward's small terms
    and the others, backward_w's with log r and with the mask. Later ones repair infinities.
    """
    part = _part(row)
    products = 3 if part == "backward_x" else 1
    count = products * row["options"]["DEPTH"] // DEEP
    return [loop for loop in row["loops"] if loop["matrix"] == count][: len(TURNS[str(part)])]


def multiply_adds(row: dict[str, Any]) -> float:
    """The formula's multiply-adds for each instruction of a warp in the loops."""
    part = _part(row)
    assert part is not None
    if "DEPTH" in row["options"]:
        chosen = _main_loops(row)
        done = len(chosen) * row["options"]["ROWS"] * TILE * row["options"]["DEPTH"]
        turns = TURNS[part]
    else:
        chosen, turns = [max(row["loops"], key=lambda loop: loop["matrix"])], (1,)
        done = TERMS[part] * math.prod(row["options"][f"BLOCK_{name}"] for name in "BOI")
    issued = sum(n * loop["instructions"] for n, loop in zip(turns, chosen, strict=False))
    return done / row["warps"] / issued


def large_faults(rows: list[dict[str, Any]]) -> None:
    """Add faults to the rows of a target's large kernels; its fused kernels are rows too."""
    one_pass = {}
    for row in rows:
        if _part(row) and row["passes"] == 6 and row.get("loops") and row["case"] == "large":
            one_pass[_part(row)] = multiply_adds(row)
    for row in rows:
        if not (_part(row) and row["target"] in TARGETS and row["options"].get("PRODUCTS") == 3):
            continue
        chosen = _main_loops(row)
        if len(chosen) != len(TURNS[str(_part(row))]):
            row["faults"].append(f"loops not understood: {row['loops']}")
            continue
        depth = row["options"]["DEPTH"]
        row["faults"] += [
            f"{loop['waits']} waits for {loop['matrix'] * DEEP // depth} products"
            for loop in chosen
            if loop["waits"] > loop["matrix"] * DEEP // depth
        ]
        planes = 2 if _part(row) == "backward_x" else 1
        stage = 2 * planes * (row["options"]["ROWS"] + TILE) * depth
        if row["shared_bytes"] < 2 * stage:
            memory = f"{row['shared_bytes']} bytes of shared memory"
            row["faults"].append(f"{memory}, two stages take {2 * stage}")
        gain = multiply_adds(row) / one_pass[_part(row)]
        if gain < GAIN:
            rate = "the fused kernel's multiply-adds an instruction"
            row["faults"].append(f"{gain:.1f} times {rate}, least {GAIN}")
