"""Doubtful rows and the report of the throughput suite, of made-up rows."""

import json
from pathlib import Path

import pytest

from benchmarks.throughput import report, timing
from tests.support.throughput import MODELS, made_up

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


# ---- the report ----------------------------------------------------------------------------------


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_block_is_replaced_and_nothing_else(tmp_path):
    size = report.SHORT[4].size
    rows = [made_up(rival, 2.0, size) for rival in ("ours", "eager", "hand-written")]
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


def test_the_summary_has_the_newest_row_of_each_case():
    def rows(commit, date, sizes):
        for size, ratio in sizes.items():
            for rival in ("ours", "eager", "hand-written"):
                row = made_up(rival, ratio, size)
                row["environment"] = {**row["environment"], "commit": commit, "date": date}
                yield row

    small, large = report.SHORT[4].size, report.SHORT[6].size
    older, newer = {small: 2.25, large: 4.5}, {large: 6.75}
    text = report.summary([*rows("new", "2026-02", newer), *rows("old", "2026-01", older)])
    lines = text.splitlines()
    assert text.count("2.25") == 2
    assert text.count("6.75") == 2
    assert "4.50" not in text
    assert "2.25" in lines[4]  # by work
    assert "6.75" in lines[5]
    assert lines[-1].endswith("at new and old.")


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


def main_rows():
    size = report.SHORT[4].size
    ratios = {"ours": 1.0, "eager": 5.0, "compile": 4.0, "hand-written": 2.0}
    return [made_up(name, ratio, size) for name, ratio in ratios.items()]


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
                  "?: a noisy ratio", "torch.compile"):  # fmt: skip
        assert f"<!-- {shown} -->" in text or shown in text
    for bar in ("5", "4", "8", "2.5?"):
        assert f"<!-- {bar} -->" in text
    write(file, [made_up("ours", 1.0, MODELS)])
    assert report.main([str(file), "--picture", str(picture)]) == 1
    assert "eager and compile" in capsys.readouterr().err
