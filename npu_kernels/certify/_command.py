"""The command ``python -m npu_kernels.certify``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from npu_kernels._jobs import files
from npu_kernels.certify._checks import CHECKS, SLOW, Result, columns, measure, not_run
from npu_kernels.certify._report import markdown, versions

# The files of all checks.
JSON, MARKDOWN = Path("npu_kernels_certificate.json"), Path("npu_kernels_certificate.md")


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m npu_kernels.certify",
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
