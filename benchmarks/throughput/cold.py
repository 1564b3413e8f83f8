"""Cold starts: the processor time of a first call in a fresh process, beside its second one.

    python -m benchmarks.throughput.cold [--processes N] [--only import,training] [--json FILE]
    python -m benchmarks.throughput.cold --page FILE FILE...

The first form measures; rows go to FILE. Each question and rival has N processes, one after the
other in rounds. A process imports torch first, which is not counted, makes what a call needs, and
times the call twice. Processor time counts all threads of the process and the compilers that it
starts. The second form writes a table of rows between the marks of a page.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from benchmarks import rows_command
from benchmarks.arguments import command, listed, positive
from benchmarks.marked_blocks import record_table
from benchmarks.rows_command import Row
from benchmarks.throughput import environment, results, timing
from npu_kernels._jobs.driver import Progress

COLD_MARK = "throughput-cold"
PROCESSES = 7
COLD_STEPS = 200
PROCESS_SECONDS = 600.0  # seconds
OURS = "ours"

DATA_CODE = """
import npu_kernels
torch.manual_seed(0)
x = torch.rand(100, 2) + 0.1
y = x[:, :1] * x[:, 1:]
"""
CHAIN_CODE = "torch.nn.Sequential(npu_kernels.NPU(2, 6{0}), npu_kernels.NAU(6, 1{0}))"
EAGER_CODE = f"""
from npu_kernels.interop import to_reference
model = to_reference({CHAIN_CODE.format("")})
"""
LOOP_CODE = """
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range({steps}):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""
# Question -> rival -> what is made before, and what is timed.
CALLS: dict[str, dict[str, tuple[str, str]]] = {
    "import": {OURS: ("", "import npu_kernels")},
    "training": {
        OURS: (
            f"{DATA_CODE}model = {CHAIN_CODE.format('')}",
            f"npu_kernels.training.run(model, x, y, steps={COLD_STEPS}, lr=1e-3)",
        ),
        "eager": (f"{DATA_CODE}{EAGER_CODE}", LOOP_CODE.format(steps=COLD_STEPS)),
        "compile": (f"{DATA_CODE}{EAGER_CODE}model.compile()", LOOP_CODE.format(steps=1)),
    },
    "fit": {
        OURS: (
            f"{DATA_CODE}model = {CHAIN_CODE.format(', num_models=8')}",
            "npu_kernels.fit(model, x, y, progress=False)",
        )
    },
    "regressor": {
        OURS: ("import npu_kernels", "from npu_kernels import NPURegressor"),
        "sklearn": ("", "import sklearn.base"),
        "pysindy": ("", "import pysindy"),
    },
}
QUESTIONS = {
    "import": "`import npu_kernels`",
    "training": f"a training of {COLD_STEPS} steps, NPU(2, 6) -> NAU(6, 1), 100 rows",
    "fit": "`fit` of the same from 8 starts",
    "regressor": "`from npu_kernels import NPURegressor`",
}
RIVALS = {
    OURS: "ours",
    "eager": "eager layers, loop with torch.optim.Adam",
    "compile": "the same by torch.compile, one step",
    "sklearn": "`import sklearn.base` alone",
    "pysindy": "`import pysindy`",
}
CHILD = """
import json, os, sys, time
def spent():
    times = os.times()
    return time.process_time() + times.children_user + times.children_system
start = spent()
import torch
torch_seconds = spent() - start
torch.set_num_threads(1)
before, call = json.loads(sys.argv[1])
scope = {"torch": torch}
exec(before, scope)
seconds = []
for _ in range(2):
    start = spent()
    exec(call, scope)
    seconds.append(spent() - start)
print(json.dumps({"torch": torch_seconds, "first": seconds[0], "second": seconds[1]}))
"""


def missing(rival: str) -> bool:
    """Whether a rival is a package that is not installed."""
    return rival in ("sklearn", "pysindy") and find_spec(rival) is None


def seconds(question: str, rival: str) -> dict[str, float]:
    """Return the processor time of torch's import, the first and the second call, in a process."""
    order = json.dumps(CALLS[question][rival])
    with tempfile.TemporaryDirectory() as cache:  # of torch's compiler: it is to compile
        settings = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        settings["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # processes that are waited for are counted
        settings.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's second process has bytecode
        done = subprocess.run(
            [sys.executable, "-c", CHILD, order], env=settings, capture_output=True, text=True,
            timeout=PROCESS_SECONDS, check=False, cwd=Path(__file__).resolve().parents[2],
        )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"cold: {question} of {rival} failed: {done.stderr.strip()[-500:]}")
    times: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return times


def measure(questions: Sequence[str], processes: int) -> list[Row]:
    """Return a row for each question and rival."""
    pairs = [(q, rival) for q in questions for rival in CALLS[q] if not missing(rival)]
    times: dict[tuple[str, str], list[dict[str, float]]] = {pair: [] for pair in pairs}
    with Progress("cold starts", (processes + 1) * len(pairs)) as progress:
        for number in range(processes + 1):
            for index, pair in enumerate(pairs):
                measured = seconds(*pair)
                if number > 0:  # the first one writes bytecode and fills the system's caches
                    times[pair].append(measured)
                progress.update(number * len(pairs) + index + 1)
    where = environment.describe()
    return [
        {
            "cold": question,
            "rival": rival,
            "processes": processes,
            **{key: _spread([t[key] for t in each]) for key in ("torch", "first", "second")},
            "environment": where,
        }
        for (question, rival), each in times.items()
    ]


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {name: round(value, 5) for name, value in asdict(timing.spread(values)).items()}


# ---- the table -----------------------------------------------------------------------------------


def _time(spread: Mapping[str, float]) -> str:
    median = spread["median"]
    return f"{median:.2g} s" if median >= 0.1 else f"{1000 * median:.2g} ms"


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table, and the place of its rows; of two rows the later one counts."""
    machines: dict[str, dict[tuple[str, str], Row]] = {}
    for row in rows:
        where = row["environment"]
        versions = f"torch {where['torch']}, npu_kernels at {where['commit']}"
        facts = f"{results.processor_of(where)}, {versions}"
        machines.setdefault(facts, {})[row["cold"], row["rival"]] = row
    texts = []
    for facts, cells in machines.items():
        records = [
            {
                "what": QUESTIONS[question],
                "whose": RIVALS[rival],
                "the first": _time(row["first"]),
                "the second": _time(row["second"]),
                "`import torch` before": _time(row["torch"]),
            }
            for (question, rival), row in cells.items()
        ]
        load = max(row["environment"]["load_average"] or 0.0 for row in cells.values())
        count = min(row["processes"] for row in cells.values())
        facts += f"; medians of {count} processes, load average {load:g}"
        texts.append(f"{facts}:\n\n{record_table(records)}")
    return "\n".join(texts).strip()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = command("benchmarks.throughput.cold", __doc__)
    add, questions = parser.add_argument, "questions, with commas between"
    add("--processes", type=positive, default=PROCESSES, help="of each question and rival")
    add("--only", type=listed(choice=CALLS), default=",".join(CALLS), help=questions)
    measured = lambda options: measure(options.only, options.processes)  # noqa: E731
    return rows_command.run(parser, argv, COLD_MARK, table, measured)


if __name__ == "__main__":
    sys.exit(main())
