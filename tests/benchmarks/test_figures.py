"""Measured figures stand in generated blocks only: the prose of documents and docstrings has none.

The blocks are what `make tables` would write. tests/benchmarks/test_equations_benchmark.py and
tests/benchmarks/test_time_series_benchmark.py have the pages that are not here.
"""

import re
from pathlib import Path

import pytest

from benchmarks import rows_command
from benchmarks.equations import workers
from benchmarks.marked_blocks import insert
from benchmarks.paper import report as paper
from benchmarks.throughput import cold, report, results
from tests.support import examples
from tests.support.examples import ROOT

RESULTS = ROOT / "benchmarks" / "results"
TABLES = ROOT / "docs" / "tables"
SHORT = {f"paper-{table.name}" for table in paper.TABLES.values() if table.short is not None} | {
    "paper-overview"
}
GUIDE = {f"paper-{table.name}-guide" for table in paper.TABLES.values() if table.guide is not None}
# Pages that this rule leaves out, and why.
LEFT_OUT = {
    "CHANGELOG.md": "history: the figures of their day",
    "benchmarks/NOTES.md": "a diary of what was tried",
    **{str(page.relative_to(ROOT)): "make tables writes it" for page in TABLES.glob("*.md")},
    "docs/reliability.md": "bounds, each with its test (tests/project/test_reliability.py)",
}
# The blocks that a test compares with what makes them.
BLOCKS = {
    *("throughput-summary", "throughput-gpus", "throughput-cold", "equations"),
    "equations-processors",
    "equations-workers",
    *("gpu-trainings", "gpu-rollouts", "gpu-crossover"),
    *(
        "published",
        "support",
        "throughput-rows",
        "throughput-derivatives",
        "throughput-threads",
        "throughput-steps",
    ),
    *("time-series", "time-series-equations", "time-series-wrong", "odebench"),
    *("regression", "regression-beyond"),
    *(SHORT | GUIDE),
}
BLOCK = re.compile(r"^<!-- (?P<name>[\w-]+):begin -->$.*?^<!-- (?P=name):end -->$", re.M | re.S)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.M | re.S)

FRACTION = r"half|third|quarter|fifth|sixth|seventh|eighth|ninth|tenth|hundredth"
COUNT = r"two|three|four|five|six|seven|eight|nine|ten|twenty|fifty|\w*hundreds?|\w*thousands?"
FIGURE = re.compile(
    rf"""
    \d\s?(?:times|%|µs|us|ms|s|seconds?|minutes?|hours?|[KMG]i?B|[KMG]?FLOP\w*|bytes)(?!\w)
    | \d\.\d+x(?!\w)
    | (?<![\w/.])1/\d+(?:\.\d+)?\sof\s
    | \b(?:{FRACTION})\sof\s(?:the\s|its\s|eager|torch|JAX|a\s)*(?:time|memory|eager|that)
    | \b(?:twice|(?:{COUNT})\stimes)\s(?:as|the)\s(?:fast|long|slow|much|time|memory)
    | \b(?:half\sa|{COUNT})\s(?:micro|milli)?seconds?
    """,
    re.X,
)
# Docstrings have many bounds and settings. What they say of speed names one of these.
SPEED = re.compile(r"\b(?:fast|slow|(?:fast|slow)er|eager|torch|JAX|[µu]s|ms|\w*seconds?)\b")
# What looks like a measured figure and is none: phrases of a page, by the reason.
NO_MEASUREMENT = {
    "a setting, a limit or a size of the code": {
        "CONTRIBUTING.md": ["60 seconds for each"],
        "docs/gpus.md": ["6 bytes for each element", "multiples of 16 bytes"],
        "docs/performance.md": ["at least 2 ms", "a tenth of the time ("],
        "docs/compatibility.md": ["at most 30 %", "(50 % from"],
    },
    "a definition: noise that is added, an interval, a threshold": {
        "docs/how-well.md": [
            *("is 1 % of y's", "at most 2 % of", "At 1 %", "at 1 % noise", "model at 1 %"),
            *("95 % interval", "less than 95 % of"),
        ],
        "docs/paper.md": ["the largest 5 % of"],
        "docs/time-series.md": [
            "noise of 1 %", "than 5 % of the state", "(p < 1e-5", "more than 50 %", "30 % of", "above 0.5",
            "exceed 5 % of", "exceeds 8", "(1.4826 times", "(10 times", "1/10, 1/4 and 1/2",
            "more than 30 % of", "-1/10 of", "−1/10 of", "−4 standard", "4 standard errors",
            "errors of 1 %",
        ],
        "docs/tutorials/from-a-table.md": ["95 % intervals"],
        "docs/tutorials/train-and-extrapolate.md": ["with errors of 2 %"],
    },
    "an example on the page computes it": {
        "docs/choosing-a-layer.md": ["right to 1 % where"],
    },
}  # fmt: skip


# ---- generated blocks ----------------------------------------------------------------------------


def of(name: str) -> list[Path]:
    return sorted(RESULTS.glob(f"{name}-*.jsonl"))


def test_throughput_tables_are_those_of_the_results() -> None:
    rows = results.read(of("throughput"))
    assert {page.name: page.read_text() for page in TABLES.iterdir()} == report.pages(rows)
    for name, mark, text in (
        ("docs/performance.md", "throughput-summary", report.summary(rows)),
        ("docs/gpus.md", "throughput-gpus", report.gpus(rows)),
        ("docs/performance.md", "throughput-rows", report.many_rows(results.read(of("rows")))),
        ("docs/performance.md", "throughput-derivatives", report.derivatives(results.read(of("derivatives")))),
        ("docs/in-your-training.md", "throughput-steps", report.steps(results.read(of("steps")))),
        ("docs/performance.md", "throughput-threads", report.thread_gains(results.read(of("threads")))),
        ("docs/performance.md", cold.COLD_MARK, cold.table(rows_command.read(*of("cold")))),
        ("docs/in-your-training.md", workers.MARK, workers.table(rows_command.read(*of("workers")))),
    ):  # fmt: skip
        page = (ROOT / name).read_text()
        assert page == insert(page, text, mark), name


def test_every_row_of_the_suite_is_on_a_page() -> None:
    rows = results.read(of("throughput"))
    groups = [group for machine in results.grouped(rows).values() for group in machine.values()]
    # a later row of the same case would hide the earlier one
    assert sum(map(len, groups)) == len(rows)
    assert all("ours" in group for group in groups)  # a line of a table is one of ours
    shown = {"ours", report.OUR_GRAPH} | report.GRAPHS.keys()
    assert {row["rival"] for row in rows} <= (
        shown | report.COLUMNS.keys() | report.YARDSTICKS.keys()
    )
    pages = [text for name, text in report.pages(rows).items() if "side-by-side" not in name]
    assert sum(text.count("\n| ") - 2 * text.count("\n| layer |") for text in pages) == len(groups)


def test_the_papers_report_is_that_of_the_results() -> None:
    assert (RESULTS / "paper" / "report.md").read_text() == paper.full(RESULTS / "paper")


@pytest.mark.parametrize(
    ("name", "blocks"),
    [("paper.md", SHORT), ("choosing-a-layer.md", GUIDE)],
    ids=["paper", "choosing-a-layer"],
)
def test_paper_tables_are_those_of_the_results(name: str, blocks: set[str], tmp_path: Path) -> None:
    page, copy = ROOT / "docs" / name, tmp_path / name
    copy.write_text(page.read_text())
    assert set(paper.insert(RESULTS / "paper", copy)) == blocks
    assert copy.read_text() == page.read_text()


# ---- prose ---------------------------------------------------------------------------------------


def prose(text: str) -> str:
    """Return the text without generated blocks and code, its lines in their places."""
    for pattern in (BLOCK, CODE):
        text = pattern.sub(lambda match: "\n" * match[0].count("\n"), text)
    return text


def figures(text: str, allowed: list[str]) -> list[str]:
    """The lines of a text with a figure that looks measured, each after its number."""
    text = prose(text)
    for phrase in allowed:
        text = text.replace(phrase, re.sub(r"[^\n]", "", phrase))
    line_indices = sorted({text.count("\n", 0, match.start()) for match in FIGURE.finditer(text)})
    return [f"{index + 1}: {text.splitlines()[index]}" for index in line_indices]


def speeds(text: str) -> list[str]:
    """The lines of `figures` that are about speed."""
    return [line for line in figures(text, []) if SPEED.search(line)]


def allowed_on(page: str) -> list[str]:
    return [phrase for pages in NO_MEASUREMENT.values() for phrase in pages.get(page, [])]


PAGES = {str(page.relative_to(ROOT)): page for page in examples.pages()}
PAGES["benchmarks/results/README.md"] = ROOT / "benchmarks" / "results" / "README.md"


@pytest.mark.parametrize("name", sorted(PAGES.keys() - LEFT_OUT.keys()))
def test_prose_has_no_measured_figure(name: str) -> None:
    """Name the table instead, or generate a block; a definition goes into the list above."""
    assert figures(PAGES[name].read_text(encoding="utf-8"), allowed_on(name)) == []


def test_docstrings_have_no_measured_figure() -> None:
    sources = sorted((ROOT / "npu_kernels").rglob("*.py"))
    texts = [pair for path in sources for pair in examples.docstrings(path)]
    assert [f"{name}: {line}" for name, text in texts for line in speeds(text)] == []


def test_every_generated_block_has_a_test() -> None:
    """A block of another name would hide its figures from the rule."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES.values()]
    names = {match["name"] for text in texts for match in BLOCK.finditer(text)}
    assert names == BLOCKS


@pytest.mark.parametrize("text", [
    "It takes 1/502 of eager's time.", "A step is 5.1 times as fast, with 16 MiB.",
    "8 to 12 % less time", "3.1 ms for one model", "some 35 µs more", "100 to 211 us", "about 2.2x",
    "A step takes a seventh of eager's time.", "a fifth of that of JAX", "Both are twice as fast.",
    "three times as long", "which takes half a millisecond",
])  # fmt: skip
def test_measured_figures_are_noticed(text: str) -> None:
    assert figures(f"Words.\n{text}\n", []) == [f"2: {text}"]
    block = f"<!-- throughput:begin -->\n{text}\n<!-- throughput:end -->\n"
    assert figures(f"{block}```\n{text}\n```\n", []) == []
