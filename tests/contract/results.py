"""The numbers of the seeded calls: what is kept of them, and the comparison with those of now."""

import hashlib
import json
import math
import os
import platform
import re
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from npu_kernels.env import environment
from tests.contract.cases import CASES, Values

FILE = Path(__file__).with_name("results.json")
# On another processor: the difference of two numbers over their size, and over the greatest number
# of the same value.
RELATIVE, ROUNDING = 1e-6, 1e-9
DECIMAL = re.compile(r"[-+]?\d+\.\d+(?:e[-+]?\d+)?")
Result = dict[str, list[Any]]  # a value's name: the digest of its bits, and the value, rounded


def processor() -> str:
    """What decides the last bits: the kind of processor, and the libraries."""
    facts, info = environment(), Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    model = [line for line in lines if re.match(r"(vendor_id|cpu family|model)\s*:", line)][:3]
    return ", ".join(
        [
            *(line.partition(": ")[2] for line in model),
            f"kernels {facts['cpu instruction set'].partition(' ')[0]}",
            f"ATen {torch.backends.cpu.get_cpu_capability()}",
            f"MKL {os.environ.get('MKL_ENABLE_INSTRUCTIONS', 'free')}",
            f"OpenBLAS {os.environ.get('OPENBLAS_CORETYPE', 'free')}",  # NumPy's
            *(f"{name} {facts[name]}" for name in ("torch", "numpy", "fast path")),
            " ".join(platform.libc_ver()),
        ]
    )


def computed(name: str) -> Result:
    """The values of a case, and what the package warns of."""
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = CASES[name]()
    ours = [said for said in caught if said.category.__module__.startswith("npu_kernels")]
    return kept(values | ({"warnings": [str(said.message) for said in ours]} if ours else {}))


def kept(values: Values) -> Result:
    """Digests and rounded values; of "bits" a digest alone."""
    result = {}
    for name, value in values.items():
        lines = [value] if isinstance(value, str) else value
        is_text = isinstance(lines, list) and any(isinstance(line, str) for line in lines)
        bits = "\n".join(lines).encode() if is_text else _flat(value).tobytes()
        shown = lines if is_text else [float(f"{number:.10g}") for number in _flat(value)]
        digest = hashlib.sha256(bits).hexdigest()[:12]
        result[name] = [digest, [] if name.startswith("bits") else shown]
    return result


def _flat(value: Any) -> Any:
    """All numbers of tensors, arrays and lists, in order."""
    if isinstance(value, (list, tuple)):
        return np.concatenate([np.zeros(0), *map(_flat, value)])
    value = value.detach() if isinstance(value, Tensor) else value
    return np.asarray(value, dtype=np.float64).ravel()


def differences(old: Result, new: Result, is_same_processor: bool) -> list[str]:
    """What differs, a line for each value, with its first numbers or lines that do."""
    lines = []
    for name in sorted(old | new):
        (old_bits, before), (bits, after) = (result.get(name, ["", None]) for result in (old, new))
        if before is None or after is None:
            lines.append(f"{name}: {'added' if before is None else 'removed'}")
        elif pairs := _differing(before, after):
            more = f" and {len(pairs) - 2} more" if len(pairs) > 2 else ""
            lines.append(f"{name}: {', '.join(f'{a} -> {b}' for a, b in pairs[:2])}{more}")
        elif is_same_processor and old_bits != bits:
            lines.append(f"{name}: other bits")
    return lines


def _differing(old: list[Any], new: list[Any]) -> list[tuple[Any, Any]]:
    """The numbers that differ by more than rounding, or lines by more than last digits."""
    if len(old) != len(new):
        return [(old, new)]
    pairs = list(zip(old, new, strict=True))
    if any(isinstance(value, str) for value in [*old, *new]):
        return [pair for pair in pairs if not _is_near_text(*map(str, pair))]
    finite = [abs(number) for number in old if math.isfinite(number)]
    rounding = ROUNDING * max(finite, default=0.0)
    return [pair for pair in pairs if not np.isclose(*pair[::-1], RELATIVE, rounding, True)]


def _is_near_text(old: str, new: str) -> bool:
    pairs = zip(DECIMAL.findall(old), DECIMAL.findall(new), strict=False)
    return DECIMAL.split(old) == DECIMAL.split(new) and all(
        abs(a - b) <= Decimal((0, (1,), max(a.as_tuple().exponent, b.as_tuple().exponent)))
        for a, b in (map(Decimal, pair) for pair in pairs)
    )


def read() -> dict[str, Any]:
    """The processor on which the results were kept, and these by case."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def write(results: dict[str, Result]) -> None:
    """Keep results of this processor, a line for each value."""
    lines = [f'{{\n "processor": {json.dumps(processor())},\n "cases": {{']
    for name, result in sorted(results.items()):
        rows = (json.dumps({value: entry}, ensure_ascii=False) for value, entry in result.items())
        lines += [f'  "{name}": {{', ",\n".join(f"   {row[1:-1]}" for row in rows), "  },"]
    FILE.write_text("\n".join(lines)[:-1] + "\n }\n}\n", encoding="utf-8")
