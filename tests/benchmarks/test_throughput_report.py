"""Doubtful rows and the report of the throughput suite, of made-up rows."""

import json
import sys
import time
from pathlib import Path

import pytest

from benchmarks.throughput import report, results, suite, timing
from benchmarks.throughput.cases import Size
from tests.support.building import run_forked
from tests.support.throughput import MODELS, TINY, all_tables, made_up, made_up_rows

pytestmark = pytest.mark.usefixtures("one_thread")  # what they run sets another number


# ---- doubts --------------------------------------------------------------------------------------


def test_who_is_doubtful():
    row = {"ratio": 5.0, "ratio_p20": 4.0, "ratio_p80": 6.0, "waited": 0.05}
    assert not timing.doubtful(row)
    assert not timing.doubtful({"ratio": 5.0})
    assert not timing.doubtful({**row, "waited": None})
    assert timing.doubtful({**row, "ratio_p80": 8.1})
    # steady, beside other work: torch waits in every operation
    assert timing.doubtful({**row, "waited": 0.11})
    assert not timing.doubtful({**row, "waited": 0.11, "clock": timing.PROCESSOR})
    assert timing.doubtful({**row, "ratio_p80": 8.1, "clock": timing.PROCESSOR})


def test_a_crowd_is_seen(monkeypatch, tmp_path):
    """The share that the system counts; where it counts nothing, by the load average."""
    for ready in (1, 2):
        (tmp_path / "7").mkdir(exist_ok=True)
        (tmp_path / "7" / "schedstat").write_text(f"0 {ready * 10**9} 3")
        monkeypatch.setattr(timing, "TASKS", tmp_path)
        if ready == 1:
            crowd = timing.Crowd().__enter__()
    time.sleep(0.01)
    crowd.__exit__()
    assert crowd.waited is not None
    assert 1 < crowd.waited <= 100
    monkeypatch.setattr(timing, "TASKS", tmp_path / "missing")
    monkeypatch.setattr(timing.os, "getloadavg", lambda: (3.0, 0, 0), raising=False)
    monkeypatch.setattr(timing.os, "cpu_count", lambda: 2)
    with timing.Crowd() as crowd:
        pass
    assert crowd.waited == 0.5


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/task/*/schedstat is Linux's")
def test_other_work_is_counted():
    """Two processes on one core."""
    code = """
import os, subprocess, sys, time
from benchmarks.throughput.timing import Crowd
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
with Crowd() as crowd:
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass
busy.kill()
busy.wait()
print(crowd.waited)
"""
    child = run_forked(code)
    assert child.returncode == 0, child.stderr
    assert float(child.stdout) > timing.CROWDED


def test_no_verdict_from_noisy_times():
    fast, slow = made_up("eager", 6765.0, waited=0.98), made_up("compile", 0.5, waited=0.98)
    nobody = "Nobody was faster."
    assert suite.verdict([made_up("eager", 5.0), made_up("linear", 0.5)], nobody) == [nobody]
    (line,) = suite.verdict([fast, slow], nobody)
    assert line.startswith("No verdict: 2 of 2 ratios are marked with ?, noisy: ")
    assert suite.losses([slow]) == []
    lines = suite.verdict([fast, made_up("compile", 0.5)], nobody)
    assert lines[:2] == [
        "Where we lose:",
        "  npu step 5x3x2, 1 threads: compile takes 0.50 of our time",
    ]
    assert lines[2].startswith("No verdict: 1 of 2")
    assert "6765.00x? " in suite.show({**fast, "ratio_p20": 6700.0, "ratio_p80": 6800.0})


def test_noisy_numbers_are_marked_in_the_tables():
    rows = [{**row, "waited": 0.5} for row in made_up_rows()]
    line = next(line for line in all_tables(rows).splitlines() if "5, 3, 2, 1" in line)
    for cell in ("100 µs?", "5.00?", "0.80?", "0.50?"):
        assert f" {cell} |" in line
    assert "**" not in line
    assert f"A number with ? is {timing.DOUBT}." in all_tables(rows)
    assert "?" not in all_tables(made_up_rows())


def test_the_later_of_two_rows_counts():
    rows = [made_up("ours", 1.0), made_up("eager", 0.5), made_up("eager", 3.0)]
    text = all_tables(rows)
    assert "3.00" in text
    assert "0.50" not in text


# ---- the report ----------------------------------------------------------------------------------


def test_markdown_table():
    lines = all_tables(made_up_rows()).splitlines()
    assert "Abacus 3, kernels for beads, torch 9, npu_kernels 8 at c0ffee:" in lines
    head = [
        cell.strip()
        for cell in next(line for line in lines if line.startswith("| layer")).split("|")[1:-1]
    ]
    row = [
        cell.strip()
        for cell in next(line for line in lines if "5, 3, 2, 1" in line).split("|")[1:-1]
    ]
    cells = dict(zip(head, row, strict=True))
    assert cells["ours"] == "100 µs"
    assert cells["eager"] == "5.00"
    assert cells["compile"] == "**0.80**"  # lost, and shown
    assert cells["`nn.Linear`"] == "0.50"  # above 1 is good in every column
    assert cells["error (eager's)"] == "1.0e-07 (2.0e-07)"
    assert cells["peak MiB (eager's)"] == "1.0 (4.0)"
    assert cells["of the limit"] == "50 %"
    assert "of the peak" not in head


def test_the_share_of_the_peak_is_a_column():
    with_tiles = made_up("ours", 1.0, share_of_peak=1.2, tile_gflops=1170.4)
    text = all_tables([with_tiles, made_up("ours", 1.0, Size(500, 30, 20), share_of_peak=0.61)])
    assert "| of the peak |" in text
    assert "| 120 % (tiles 1170 GFLOP/s) |" in text
    assert "| 61 % |" in text
    assert "of the peak" not in all_tables(made_up_rows())


def test_machines_and_precisions_have_their_own_tables():
    other = made_up("ours", 1.0, environment={"processor": "Slide rule"})
    text = all_tables([*made_up_rows(), other, made_up("ours", 1.0, matmul_precision="high")])
    assert text.count("| layer |") == 4  # and that of the processors side by side
    assert list(report.pages([*made_up_rows(), other])) == [
        *("throughput-abacus-3.md", "throughput-slide-rule.md", "throughput-side-by-side.md")
    ]
    assert 'matmul precision "high"' in text


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_block_is_replaced_and_nothing_else(tmp_path):
    size = report.SHORT[4].size
    rows = [made_up(rival, 2.0, size) for rival in ("ours", "eager")]
    rows += [{**row, "environment": {"processor": "Slide rule"}} for row in rows]
    file, page = write(tmp_path / "rows.jsonl", rows), tmp_path / "page.md"
    begin, end = "<!-- throughput-summary:begin -->", "<!-- throughput-summary:end -->"
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    for _ in range(2):  # again gives the same
        assert report.main([str(file), "--page", str(page)]) == 0
        text = page.read_text()
        assert text.startswith(f"before\n{begin}\n**Abacus 3**\n")
        assert text.endswith(f".\n{end}\nafter\n")
        assert "old" not in text
        assert text.count("| --- |\n") == 2


def test_the_time_of_a_row_by_the_number_of_rows(tmp_path):
    rows = []
    for count in (1000, 10, 100, 10_000):
        rows += [made_up(rival, 2.0, Size(count, 5, 3)) for rival in ("ours", "eager")]
        rows.append(made_up("ours", 1.0, Size(count, 5, 3), threads=2))
    rows.append(made_up("ours", 1.0, Size(10, 4, 3)))  # of one number of rows
    page = tmp_path / "page.md"
    page.write_text("<!-- throughput-rows:begin -->\n<!-- throughput-rows:end -->\n")
    file = write(tmp_path / "rows.jsonl", rows)
    assert report.main([str(file), "--rows", str(page)]) == 0
    head, _, *records = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert head == "| layer | I, O | 10 rows | 100 rows | 1,000 rows | 10,000 rows |"
    assert len(records) == 1
    us = next(row for row in rows if row["rows"] == 1000)["median_us"]
    assert f"| {us:,.3g} ns (2.00) |" in records[0]  # microseconds a thousand rows
    assert report.many_rows(rows[:6]) == ""


def test_the_time_of_derivatives(tmp_path):
    size, page = Size(10, 5, 3), tmp_path / "page.md"
    rows = [
        made_up(rival, ratio, size, kind=kind)
        for kind in ("slope", "jvp", "step")
        for rival, ratio in (("ours", 1.0), ("eager", 1.5), ("compile", 0.5))
    ]
    page.write_text("<!-- throughput-derivatives:begin -->\n<!-- throughput-derivatives:end -->\n")
    file = write(tmp_path / "derivatives.jsonl", rows)
    assert report.main([str(file), "--derivatives", str(page)]) == 0
    head, _, *records = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert head == "| B, I, O | what | ours | eager | `torch.compile` | error (eager's) |"
    assert [record.split(" | ")[1] for record in records] == [
        "gradient of a loss with dy/dx", "tangent of y",
    ]  # fmt: skip
    assert all("| **0.50** |" in record for record in records)


def test_what_threads_gain(tmp_path):
    page, size = tmp_path / "page.md", Size(10, 5, 3)
    rows = [
        made_up(rival, ratio, of_size, threads=threads)
        for of_size, threads in ((size, 2), (size, 1), (TINY, 2))
        for rival, ratio in (("ours", 1.0), ("eager", 5.0), ("one-thread", 1.75))
        if (threads, of_size, rival) not in ((1, size, "one-thread"), (2, TINY, "one-thread"))
    ]
    page.write_text("<!-- throughput-threads:begin -->\n<!-- throughput-threads:end -->\n")
    file = write(tmp_path / "threads.jsonl", rows)
    assert report.main([str(file), "--threads", str(page)]) == 0
    head, _, *records = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert head == "| layer | pass | B, I, O, K | one thread | 2 threads | gain |"
    assert [record.split(" | ")[2:] for record in records] == [
        ["10, 5, 3, 1", "175 µs", "100 µs", "1.75 |"]
    ]


def test_the_pages_of_all_tables_are_written(tmp_path):
    rows = [*made_up_rows(), made_up("ours", 1.0, environment={"processor": "Slide rule"})]
    assert report.main([str(write(tmp_path / "rows.jsonl", rows)), "--tables", str(tmp_path)]) == 0
    for name, text in report.pages(rows).items():
        assert (tmp_path / name).read_text() == text
        assert text.startswith("---\norphan: true\n---\n")


def test_a_processor_is_chosen_by_name_and_shown_at_its_best():
    def on(processor: str, isa: str, commit: str, date: str) -> list[dict[str, object]]:
        where = {"processor": processor, "instruction_set": isa, "commit": commit, "date": date}
        return [
            made_up(rival, 2.0, report.SHORT[2].size, environment=where)
            for rival in ("ours", "eager")
        ]

    rows = on("Abacus 3", "avx512", "newer", "2026-02") + on(
        "Abacus 3", "avx512", "older", "2026-01"
    )
    rows += on("Abacus 3", "avx2", "held", "2026-03") + on("Slide rule", "amx", "else", "2026-03")
    rows += [
        {**row, "matmul_precision": "medium"} for row in on("Abacus 3", "amx", "medium", "2026-03")
    ]
    for name, commit in (("Abacus 3", "newer"), ("Slide rule", "else")):
        _, groups = results.chosen(rows, name)
        (group,) = groups.values()
        assert group["ours"]["environment"]["commit"] == commit
    for name in (None, "Abacus 4"):
        with pytest.raises(results.ReportError, match="must name one of: Abacus 3, Slide rule"):
            results.chosen(rows, name)
    # the pages have them all, and the processors side by side
    assert all_tables(rows).count("\n## ") == 6


def test_generations_of_one_name_are_told_apart():
    rows = []
    for model in ("26/2/1", None, "99/9/9"):
        where = {"processor": "AMD EPYC", "processor_model": model}
        rows += [
            made_up(rival, 2.0, report.SHORT[2].size, environment=where)
            for rival in ("ours", "eager")
        ]
    for name in ("AMD Zen 5", "AMD Zen 4", "AMD EPYC"):
        assert results.chosen(rows, name)[0][0] == name


def test_processors_side_by_side():
    """The best instruction set and newest commit of each; cases that two have, at one thread."""

    def on(
        processor: str, isa: str, eager: float, size: Size = TINY, **more: object
    ) -> list[dict[str, object]]:
        where = {"processor": processor, "instruction_set": isa, "date": "2026-01"}
        return [
            made_up("ours", 1.0, size, environment=where, **more),
            made_up("eager", eager, size, environment=where, **more),
        ]

    rows = (
        on("Abacus 3", "avx512", 3.0) + on("Abacus 3", "avx2", 4.0) + on("Slide rule", "amx", 0.5)
    )
    rows += on("Slide rule", "amx", 7.0, Size(5, 4, 3)) + on("Slide rule", "amx", 8.0, threads=2)
    lines = [
        line
        for line in report.pages(rows)["throughput-side-by-side.md"].splitlines()
        if line.startswith("|")
    ]
    assert lines[0] == "| layer | pass | B, I, O, K | eager: Abacus 3 | eager: Slide rule |"
    assert lines[2:] == ["| NPU | step | 5, 3, 2, 1 | 3.00 | **0.50** |"]
    assert list(report.pages(on("Abacus 3", "avx512", 3.0))) == ["throughput-abacus-3.md"]
    main = report.SHORT[4].size
    rows += on("Abacus 3", "avx512", 2.0, main) + on("Slide rule", "amx", 4.0, main)
    lines = [line for line in report.summary(rows).splitlines() if line.startswith("|")]
    header = "| layer | pass | B, I, O, K | eager |"
    table = [header, "| --- | --- | --- | --- |"]  # only cases of the summary
    case = "| NPU | step | 100, 6, 2, 1 | {} |"
    assert lines == [*table, case.format("2.00"), *table, case.format("4.00")]


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "there are no rows"), ("{", "line 1 is no JSON"), ("[]", "line 1 is no row"),
     ('{"layer": 1}', "without kind")],
)  # fmt: skip
def test_bad_files_are_named(content, message, tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    file.write_text(content)
    assert report.main([str(file)]) == 1
    assert message in capsys.readouterr().err
    assert report.main([str(tmp_path / "absent.jsonl")]) == 1
    assert "cannot read" in capsys.readouterr().err


def test_report_prints_by_default(tmp_path, capsys):
    assert report.main([str(write(tmp_path / "rows.jsonl", made_up_rows()))]) == 0
    assert "| NPU | step |" in capsys.readouterr().out


def main_rows():
    size = report.SHORT[4].size
    return [made_up("ours", 1.0, size), made_up("eager", 5.0, size), made_up("compile", 4.0, size)]


def test_report_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    file, picture = write(tmp_path / "rows.jsonl", main_rows()), tmp_path / "picture.png"
    assert report.main([str(file), "--picture", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    picture = tmp_path / "picture.svg"
    write(file, [*main_rows(), made_up("compile", 2.5, report.SHORT[5].size, waited=0.5),
                 made_up("eager", 8.0, report.SHORT[5].size)])  # fmt: skip
    assert report.main([str(file), "--picture", str(picture)]) == 0
    text = picture.read_text()
    for shown in ("npu_kernels", "NPU 6 → 2, 100 rows", "NPU 6 → 2, 100 rows, 1000 models",
                  "?: a doubtful ratio", "torch.compile"):  # fmt: skip
        assert f"<!-- {shown} -->" in text or shown in text
    for bar in ("5", "4", "8", "2.5?"):
        assert f"<!-- {bar} -->" in text
    write(file, [made_up("ours", 1.0, MODELS)])
    assert report.main([str(file), "--picture", str(picture)]) == 1
    assert "eager and compile" in capsys.readouterr().err


def test_gpus_have_a_table_of_their_own():
    """Wall times and graphs; another program's graph is divided by ours; no processor is beside."""
    where = {"environment": {"gpu": "G", "instruction_set": "compute capability 9.0"}}
    rows = [
        made_up(rival, ratio, MODELS, device="cuda", device_us=25 * ratio, **where)
        for rival, ratio in {
            "ours": 1.0, "eager": 3.0, "graph": 0.2, "eager-graph": 0.1, "linear-graph": 0.08,
        }.items()
    ]  # fmt: skip
    text = report.gpus([*made_up_rows(), *rows])
    assert text.startswith("G, kernels for compute capability 9.0, torch unknown")
    header, _, line = text.splitlines()[2:]
    cells = dict(zip(header.strip("| ").split(" | "), line.strip("| ").split(" | "), strict=True))
    assert cells["ours"] == "100 µs"
    assert cells["eager"] == "3.00"
    assert cells["ours in a graph"] == "20.0 µs"
    assert (cells["eager in a graph"], cells["`nn.Linear` in a graph"]) == ("**0.50**", "0.40")
    assert cells["kernels alone (eager's)"] == "25 (75) µs"
    assert set(report.pages([*made_up_rows(), *rows])) - set(report.pages(made_up_rows())) == {
        "throughput-g.md"
    }
    assert report.summary([*made_up_rows(), *rows]) == report.summary(made_up_rows())
