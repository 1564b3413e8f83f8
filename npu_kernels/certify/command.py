"""Neural Power Unit, a layer: the command."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from npu_kernels.certify.matrix import CHECKS, Result, columns, measure, not_run
from npu_kernels.certify.report import markdown, versions


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m npu_kernels.certify", description="Neural Power Unit, a layer: does all of it work here?"
    )
    parser.add_argument("--json", type=Path, default=Path("npu_kernels_certificate.json"), help="where to write JSON")
    parser.add_argument("--markdown", type=Path, default=Path("npu_kernels_certificate.md"), help="and Markdown")
    parser.add_argument("--only", default="", help="checks whose title has this in it")
    parser.add_argument("--column", default="", help="columns whose name has this in it")
    options = parser.parse_args(arguments)
    titles = [title for title in CHECKS if options.only in title]
    where = [column for column in columns() if options.column in column.name]
    if not titles or not where:
        parser.error(f"nothing to run: {len(titles)} checks, columns {[column.name for column in columns()]}")

    def show(result: Result) -> None:
        print(
            f"{result.status:4} {result.seconds:6.1f} s  {result.column}: {result.check}: {result.detail}", flush=True
        )

    results, facts = measure(titles, where, show), versions()
    failed = sum(result.status == "fail" for result in results)
    report = {
        "passed": not failed,
        "versions": facts,
        "not run": not_run(),
        "results": [asdict(result) for result in results],
    }
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    options.markdown.write_text(markdown(results, facts, not_run()))
    print(f"{len(results)} cells, {failed} failed; {options.json} and {options.markdown} written")
    return 1 if failed else 0
