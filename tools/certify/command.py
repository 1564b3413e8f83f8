"""The command ``python -m tools.certify``, and its report."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from npu_kernels import env
from npu_kernels._jobs import files
from tools.certify.matrix import CHECKS, SLOW, Result, columns, measure, not_run

# The files of all checks.
JSON, MARKDOWN = Path("npu_kernels_certificate.json"), Path("npu_kernels_certificate.md")


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.certify",
        description="Check on this machine everything that npu_kernels does.",
    )
    parser.add_argument("--json", type=files.output, help=f"where to write JSON; default: {JSON}")
    parser.add_argument("--markdown", type=files.output, help=f"and Markdown; default: {MARKDOWN}")
    parser.add_argument(
        "--only", default="", help="checks whose title has this in it; writes only into files named"
    )
    parser.add_argument("--column", default="", help="columns whose name has this in it; likewise")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"one size of each layer on every backend, without {', '.join(SLOW)}; likewise",
    )
    options = parser.parse_args(arguments)
    titles = [title for title in CHECKS if options.only in title]
    titles = [title for title in titles if not (options.quick and title.startswith(SLOW))]
    where = [column for column in columns(options.quick) if options.column in column.name]
    if not titles or not where:
        names = [column.name for column in columns()]
        parser.error(f"nothing to run: {len(titles)} checks, columns {names}")
    for name, default in (("json", JSON), ("markdown", MARKDOWN)):
        path = getattr(options, name)
        if not (options.only or options.column or options.quick):
            setattr(options, name, path or _default(parser, default))
        elif path is not None and path.resolve() == default.resolve():
            rule = "is the file of whole certificates; name another one for a part of it"
            parser.error(f"--{name} {path} {rule}")

    def show(result: Result) -> None:
        cell = f"{result.column}: {result.check}: {result.detail}"
        print(f"{result.status:4} {result.seconds:6.1f} s  {cell}", flush=True)

    results, facts = measure(titles, where, show), versions()
    failed = sum(result.status == "fail" for result in results)
    report = {
        "passed": not failed,
        "versions": facts,
        "not run": not_run(),
        "results": [asdict(result) for result in results],
    }
    texts = {
        options.json: json.dumps(report, indent=1) + "\n",
        options.markdown: markdown(results, facts, not_run()),
    }
    written, lost = _written({path: text for path, text in texts.items() if path is not None})
    said = f"{' and '.join(written)} written" if written else "no file written"
    print(f"{len(results)} cells, {failed} failed; {said}")
    return 1 if failed or lost else 0


def _default(parser: argparse.ArgumentParser, path: Path) -> Path:
    try:
        return files.output(str(path))
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))


def _written(texts: dict[Path, str]) -> tuple[list[str], bool]:
    """Write files; return the written ones, and whether another had to be printed instead."""
    written, lost = [], False
    for path, text in texts.items():
        try:
            files.write(path, text)
            written.append(str(path))
        except OSError as error:
            reason = error.strerror or error
            print(f"{text}\n{path} could not be written: {reason}; it is printed above")
            lost = True
    return written, lost


# ---- the report ----


def versions() -> dict[str, str]:
    """Return the versions that the matrix was measured with."""
    facts = env.environment()
    names = "npu_kernels", "python", "torch", "triton", "numpy", "processor", "cores", "cuda"
    chosen = {name: facts[name] for name in (*names, "cpu instruction set")}
    return chosen | {name: env.version_of(name) for name in ("mpmath", "onnxruntime")}


NOTES = """
## Notes

- **triton interpreted** is the GPU kernels' own code, run by Triton's interpreter on CPU tensors in
  a process started with `TRITON_INTERPRET=1`: it shows what they compute and how they fit into
  torch, not what a GPU's compiler makes of them.
- **When not to compile.** A fused layer by itself: `torch.compile` leaves the operator as it is and
  adds the guards and the wrapper of its call, which makes a small layer slower and changes nothing
  for a large one. Compile a model that has other layers to fuse around it.
- **Double backward** through a compiled callable is not supported by torch itself and raises its
  error (the row above). Compile the computation of the gradient instead:
  `torch.compile(torch.func.grad(...))`.
- **vmap over stacked modules** is one call of the fused operators, with the gradient inside,
  outside or by plain autograd. torch makes a class for each such call; `num_models` is the same
  without. A single `torch.func.jvp` of the NPU family takes the CPU kernel of forward mode. Other
  `torch.func` transforms, and per-sample gradients, compute by the eager formulas.
- **Exported programs** hold the fused operators and need `import npu_kernels` where they run; so
  does an AOTInductor package. A program's module can be trained.
  `program.run_decompositions(npu_kernels.interop.decompositions())` leaves plain aten, for C++, and
  for ExecuTorch, whose `to_edge` takes that program. `torch.onnx.export(model, ...)` takes the
  formulas by itself, with eps and with float64's constants.
- **torch.jit.trace** records the eager formulas: a traced program has the right derivatives, needs
  no `npu_kernels` where it runs, and is as slow as they are. `torch.export` keeps the fused
  operators.
- **DTensor** knows the operators after `import npu_kernels.interop.sharding`. Rows, outputs and
  models may be sharded, inputs never: a tensor that comes sharded over them is gathered.
- **FlopCounterMode** counts the fused layers after `import npu_kernels.interop.flops`: 2
  operations for each row, output and input of each product of rows and weights in a layer's
  formula, forward and the gradients that are needed. Logarithms, exponentials, cosines and what is
  done once for each element count nothing, nor do fused ODE solvers and training loops.
- **fork** after the kernels have run on several threads: call `torch.set_num_threads(1)` in the
  child first, as for any torch operator.
- **Half precision and autocast.** Under autocast all but float64, which torch does not cast, is
  computed in float32 and the result is float32. Without it, float16 and bfloat16 tensors are
  computed in float32 and the result is cast back. One case of torch's own is left: a `NAU` or `NAC`
  that is compiled and called under autocast, with the backward outside, has a gradient in half
  precision, as `torch.nn.functional.linear` has there.
"""


def markdown(results: list[Result], facts: dict[str, str], missing: dict[str, str]) -> str:
    """Return the report: a table of what was measured, and below it what has no column and why."""
    names = list(dict.fromkeys(result.column for result in results))
    cells = {(result.check, result.column): result for result in results}
    shown = {"ok": "{}", "n/a": "n/a: {}", "fail": "**FAIL** {}"}
    lines = [
        "# Compatibility",
        "",
        "What works, and how exactly. `python -m tools.certify` in the repository made this table, "
        "and makes it for your machine.",
        "Numbers are errors. An ulp is one of exp(P), the size of the NPU's result before its "
        "cosine.",
        "",
        f"| | {' | '.join(names)} |",
        "| --- |" + " --- |" * len(names),
    ]
    for title in dict.fromkeys(result.check for result in results):
        row = (cells.get((title, name)) for name in names)
        texts = (
            shown[cell.status].format(cell.detail.replace("|", "\\|")) if cell else "not run"
            for cell in row
        )
        lines.append(f"| {title} | {' | '.join(texts)} |")
    lines.append("")
    for name, reason in missing.items():
        lines.append(f"Not run, and so not in the table: {name}: {reason}.")
    measured = ", ".join(f"{name} {value}" for name, value in facts.items())
    lines += ["", f"Measured with {measured}."]
    return "\n".join(lines) + "\n" + NOTES
