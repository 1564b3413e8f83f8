"""The throughput suite on tiny sizes and made-up rows, and the guard: at small sizes the layer is faster than eager."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.throughput import __main__ as suite_main
from benchmarks.throughput import devices, environment, memory, report, rivals, suite, timing
from benchmarks.throughput.cases import (
    FORWARD,
    ROLLOUT,
    STEP,
    Case,
    Size,
    all_cases,
    cost,
    draw,
    rollout_cases,
    training_cases,
)
from npu_kernels.backends import cpu
from tests.building import run_python

TINY, MODELS = Size(5, 3, 2), Size(5, 3, 2, 3)
WITHOUT_TOOLS = [name for name in rivals.RIVALS if name not in (rivals.COMPILE, rivals.AUTOTUNE, rivals.JAX)]


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # nothing here is large enough for two
    yield
    torch.set_num_threads(before)


# ---- timing ---------------------------------------------------------------------------------------------------------


def test_percentiles():
    assert timing.percentile([3.0, 1.0, 2.0], 0.5) == 2
    assert timing.percentile([1.0, 2.0], 0.25) == 1.25
    assert timing.percentile([7.0], 0.8) == 7
    assert timing.spread([float(i) for i in range(11)]) == timing.Spread(5, 2, 8)
    with pytest.raises(ValueError, match="no values"):
        timing.percentile([], 0.5)


def test_ratios_are_formed_within_a_repetition():
    # The machine was ten times slower in the second repetition: the ratio does not see it.
    assert timing.ratios([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == timing.Spread(2, 2, 2)
    with pytest.raises(ValueError, match="shorter"):
        timing.ratios([1.0, 2.0], [1.0])


def test_rivals_alternate():
    calls: list[str] = []

    def rival(name: str):
        def run() -> None:
            calls.append(name)
            time.sleep(0.001)

        return run

    times = timing.interleaved({"a": rival("a"), "b": rival("b")}, 0.03, block=1e-9)
    assert len(times["a"]) == len(times["b"]) >= timing.LEAST_REPETITIONS
    assert calls[-4:] in (["a", "b", "b", "a"], ["b", "a", "a", "b"])
    assert min(times["a"]) >= 0.001


def test_short_calls_are_repeated():
    count = 0

    def run() -> None:
        nonlocal count
        count += 1

    times = timing.interleaved({"a": run}, 0.01, block=0.001)
    assert count > 100 * len(times["a"])


def test_processor_time_leaves_out_what_others_take():
    def busy() -> None:
        end = time.process_time() + 0.002
        while time.process_time() < end:
            pass

    runs = {"busy": busy, "waiting": lambda: time.sleep(0.01)}
    times = timing.interleaved(runs, 0.1, clock=time.process_time)
    assert timing.ratios(times["busy"], times["waiting"]).median > 2


# ---- cases ----------------------------------------------------------------------------------------------------------


def test_sizes_are_parsed():
    assert Size.parse("100x6x2") == Size(100, 6, 2)
    assert Size.parse("100x6x2x20") == Size(100, 6, 2, 20)
    assert str(Size.parse("100x6x2x20")) == "100x6x2x20"
    for text in ("", "100", "3x2", "0x1x1", "1x2x3x4x5", "ax2x3", "-1x2x3"):
        with pytest.raises(ValueError, match="BxIxO"):
            Size.parse(text)


def test_cases_survive_their_row():
    for case in all_cases():
        assert Case.from_dict(json.loads(json.dumps(case.to_dict()))) == case


def test_the_suite_has_what_it_promises():
    cases = set(all_cases())
    for size in (Size(100, 6, 2), Size(2048, 1024, 1024), Size(100, 6, 2, 1000), Size(128, 100, 100, 10)):
        for kind in (FORWARD, STEP):
            assert {Case("npu", kind, size), Case("realnpu", kind, size), Case("npu", kind, size, "positive")} <= cases
    assert {Case("nmu", STEP, Size(128, 100, 100)), Case("inalu", STEP, Size(128, 100, 100))} <= cases
    assert {case.size.models for case in training_cases()} == {1, 20}
    assert {case.size for case in rollout_cases()} == {Size(200, 3, 9, models) for models in (1, 20, 100)}
    assert set(rollout_cases()) <= cases


def test_operands():
    assert (draw(Case("npu", STEP, MODELS)).x < 0).any()
    assert (draw(Case("npu", STEP, MODELS, "positive")).x >= 0).all()
    again = draw(Case("npu", STEP, MODELS))
    torch.testing.assert_close(again.x, draw(Case("npu", STEP, MODELS)).x, rtol=0, atol=0)


def test_cost_counts_the_products():
    operations, moved = cost(Case("npu", FORWARD, Size(10, 20, 30))) or (0, 0)
    assert operations == 2 * 2 * 10 * 20 * 30
    assert moved == 4 * (10 * 20 + 2 * 20 * 30 + 10 * 30)
    assert cost(Case("realnpu", STEP, Size(10, 20, 30, 4)))[0] == 2 * 3 * 10 * 20 * 30 * 4
    assert cost(Case("nmu", STEP, TINY)) is None


# ---- rivals ---------------------------------------------------------------------------------------------------------


def cases_to_compare() -> list[Case]:
    layers = [layer for layer in rivals.FORMULAS if layer != "npu-nau"]
    cases = [Case(layer, kind, size) for layer in layers for kind in (FORWARD, STEP) for size in (TINY, MODELS)]
    rollouts = [Case("npu-nau", ROLLOUT, size, "positive") for size in (TINY, MODELS)]
    return [*cases, Case("npu", STEP, TINY, "positive"), *training_cases(), *rollouts]


@pytest.mark.parametrize("case", cases_to_compare(), ids=str)
def test_rivals_compute_the_same(case):
    operands = draw(case)
    truth = rivals.exact(case, operands)
    compared = []
    for name in WITHOUT_TOOLS:
        if rivals.not_applicable(name, case, 1) is not None:
            continue
        workload = rivals.build(name, case, operands)
        if workload.results is not None:
            assert rivals.error(workload.results(), truth) < 2e-5, name
            compared.append(name)
        workload.run()
    assert compared[:2] == [rivals.OURS, rivals.EAGER]
    if case.layer in rivals.COMPLEX_FORMULAS:
        assert rivals.COMPLEX in compared


def test_jax_computes_the_same():
    pytest.importorskip("jax", reason="JAX is not installed")
    for layer in ("npu", "realnpu"):
        for size in (TINY, MODELS):
            case = Case(layer, STEP, size)
            operands = draw(case)
            workload = rivals.build(rivals.JAX, case, operands)
            assert workload.results is not None
            assert rivals.error(workload.results(), rivals.exact(case, operands)) < 2e-5


def test_training_moves_the_parameters():
    case = training_cases()[0]
    for name in (rivals.OURS, rivals.EAGER):
        workload = rivals.build(name, case, draw(case))
        assert workload.results is not None
        first = workload.results()[0].item()
        for _ in range(50):
            workload.run()
        assert workload.results()[0].item() < first


def test_who_takes_part():
    single, several = Case("npu", STEP, TINY), Case("npu", STEP, MODELS)
    training = training_cases()
    assert rivals.not_applicable(rivals.ONE_MODEL, several, 1) is None
    assert rivals.not_applicable(rivals.ONE_MODEL, single, 1) == ""
    assert rivals.not_applicable(rivals.LOOP, training[1], 1) is None
    assert rivals.not_applicable(rivals.LOOP, training[0], 1) == ""
    assert rivals.not_applicable(rivals.COMPLEX, Case("nmu", STEP, TINY), 1) == ""
    assert rivals.not_applicable(rivals.LINEAR, training[0], 1) == ""


# ---- rows -----------------------------------------------------------------------------------------------------------


def test_a_case_makes_rows():
    limits = environment.Limits(product_rate=1e10, copy_rate=1e9)
    said: list[str] = []
    names = [rivals.EAGER, rivals.LINEAR, rivals.ONE_MODEL]
    rows = suite.measure(Case("npu", STEP, MODELS), names, 1, 0.01, limits=limits, tell=said.append)
    assert [row["rival"] for row in rows] == ["ours", *names]
    ours, eager, linear, _ = json.loads(json.dumps(rows))
    assert ours["ratio"] == 1
    assert ours["p20_us"] <= ours["median_us"] <= ours["p80_us"]
    assert 0 < ours["error"] < 1e-5 > eager["error"]
    assert linear["error"] is None
    assert ours["share_of_limit"] > 0
    assert "share_of_limit" not in linear
    assert "ours" in suite.show(ours)
    assert said == []


def test_losses_are_named():
    row = {**Case("npu", STEP, TINY).to_dict(), "threads": 2, "rival": "eager", "ratio": 0.5}
    assert suite.losses([row]) == ["npu step 5x3x2, 2 threads: eager takes 0.50 of our time"]
    assert suite.losses([{**row, "ratio": 1.5}, {**row, "rival": "linear"}, {**row, "rival": "ours"}]) == []


def test_environment():
    where = environment.describe()
    json.dumps(where)
    for key in ("processor", "instruction_set", "torch", "npu_kernels", "commit", "cores"):
        assert where[key]
    limits = environment.Limits(100.0, 10.0)
    assert limits.seconds((200.0, 10.0)) == 2
    assert limits.seconds((100.0, 50.0)) == 5


@pytest.mark.skipif(sys.platform != "linux", reason="the high-water mark is read from Linux's /proc")
def test_peak_memory():
    case = Case("nmu", STEP, Size(128, 100, 100))  # eager builds [B, O, I] several times: 4.9 MiB each
    peak, why = memory.peak(rivals.EAGER, case.to_dict(), 1)
    if peak is None:
        pytest.skip(why)
    assert 2 * 128 * 100 * 100 * 4 < peak < 20 * 128 * 100 * 100 * 4
    assert suite.wants_memory(case)
    assert not suite.wants_memory(Case("npu", STEP, TINY))


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "3x2"], "a size is BxIxO or BxIxOxK in positive integers, got '3x2'"),
        (["--threads", "0"], "thread counts go from 1"),
        (["--threads", "one"], "integers with commas"),
        (["--rivals", "eager,foo"], "unknown foo; known: ours, eager"),
        (["--passes", "backward"], "unknown backward; known: forward, step, train, rollout"),
        (["--seconds", "0"], "--seconds must be greater than 0"),
        (["--json", "/nonexistent/rows.jsonl"], "cannot write /nonexistent/rows.jsonl"),
    ],
)
def test_bad_arguments_are_named_before_any_work(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        suite_main.main(arguments)
    assert stop.value.code == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.out == ""


def run_tiny(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(devices.Device, "product_size", 64)
    monkeypatch.setattr(devices.Device, "copy_floats", 2**16)
    arguments = ["--sizes", "5x3x2,5x3x2x3", "--threads", "1", "--seconds", "0.01", "--no-memory"]
    return suite_main.main([*arguments, "--rivals", "eager,linear", "--json", str(path)])


def test_the_suite_writes_rows_that_the_report_reads(tmp_path, capsys, monkeypatch):
    path = tmp_path / "rows.jsonl"
    assert run_tiny(path, monkeypatch) == 0
    rows = report.read([path])
    assert len(rows) == 2 * 6 * 3
    assert {row["threads"] for row in rows} == {1}
    assert rows[0]["environment"]["torch"] == torch.__version__
    text = report.markdown(rows)
    assert text.count("\n| NPU |") == 8
    assert text.count("\n| RealNPU |") == 4
    assert "a @ b" in capsys.readouterr().out


def test_an_interrupted_run_keeps_its_rows(tmp_path, capsys, monkeypatch):
    measured, calls = suite.measure, 0

    def interrupt(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return measured(*arguments, **options)

    monkeypatch.setattr(suite, "measure", interrupt)
    path = tmp_path / "rows.jsonl"
    assert run_tiny(path, monkeypatch) == 130
    assert len(path.read_text().splitlines()) == 3
    assert "interrupted" in capsys.readouterr().err


# ---- an earlier run's rows --------------------------------------------------------------------------------------


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is doubtful, however busy the machine of the tests."""
    monkeypatch.setattr(timing, "doubtful", lambda row: False)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The cases that are measured, in place of their measuring, which takes no time then."""
    made: list[str] = []

    def measure(case, names, threads, seconds, **options):
        made.append(str(case))
        row = {**made_up("", 2.0), **case.to_dict(), "threads": threads, "ratio_p20": 2.0, "ratio_p80": 2.0}
        return [{**row, "rival": name} for name in ("ours", *names)]

    monkeypatch.setattr(suite, "measure", measure)
    monkeypatch.setattr(environment, "measure_limits", lambda device: environment.Limits(1.0, 1.0))
    return made


def test_a_second_run_adds_nothing_and_loses_nothing(tmp_path, capsys, monkeypatch, idle, calls):
    path = tmp_path / "rows.jsonl"
    assert run_tiny(path, monkeypatch) == 0
    before, cases = path.read_text(), len(calls)
    assert cases == 12
    assert run_tiny(path, monkeypatch) == 0
    assert (path.read_text(), len(calls)) == (before, cases)
    assert "12 of 12 cases with 1 threads are in the file already" in capsys.readouterr().out


@pytest.mark.parametrize("torn", [False, True])
def test_a_run_goes_on_where_it_was_interrupted(torn, tmp_path, monkeypatch, idle, calls):
    """With the case of which a row is missing, in whole: its ratios are of one run."""
    path = tmp_path / "rows.jsonl"
    assert run_tiny(path, monkeypatch) == 0
    lines, first = path.read_text().splitlines(keepends=True), list(calls)
    path.write_text("".join(lines[:10]) + (lines[10][:50] if torn else ""))  # three cases and a row of the fourth
    calls.clear()
    assert run_tiny(path, monkeypatch) == 0
    assert calls == first[3:]
    rows = report.read([path])
    assert len(rows) == 10 + 27
    assert len({(*report.Case.from_dict(row).to_dict().items(), row["rival"]) for row in rows}) == 36
    assert path.read_text().startswith("".join(lines[:10]))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("processor", "Slide rule"),
        ("commit", "c0ffee"),
        ("changes", "other changes"),
        ("torch", "1.0"),
        ("instruction_set", "beads"),
    ],
)
def test_rows_of_another_machine_or_version_are_measured_anew(field, value, tmp_path, monkeypatch, idle, calls):
    path = tmp_path / "rows.jsonl"
    assert run_tiny(path, monkeypatch) == 0
    before, described = path.read_text(), environment.describe()
    calls.clear()
    monkeypatch.setattr(environment, "describe", lambda device: {**described, field: value})
    assert run_tiny(path, monkeypatch) == 0
    assert len(calls) == 12
    assert path.read_text().startswith(before)


def test_other_settings_and_doubtful_rows_are_measured_anew(tmp_path, monkeypatch, calls):
    path = tmp_path / "rows.jsonl"
    monkeypatch.setattr(timing, "doubtful", lambda row: row["layer"] == "realnpu")
    for expected in (12, 4):
        calls.clear()
        assert run_tiny(path, monkeypatch) == 0
        assert len(calls) == expected
    calls.clear()
    arguments = ["--sizes", "5x3x2", "--threads", "1", "--rivals", "eager,linear", "--seconds", "0.02"]
    assert suite_main.main([*arguments, "--json", str(path)]) == 0
    assert len(calls) == 6


@pytest.mark.parametrize("content", ["notes", "notes\n", '{"a": 1}\n', "\xff\xfe"])
def test_a_file_of_something_else_is_left_alone(content, tmp_path, monkeypatch, capsys, calls):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content.encode("latin-1"))
    assert run_tiny(path, monkeypatch) == 2
    assert path.read_bytes() == content.encode("latin-1")
    assert calls == []
    assert "--json: " in (error := capsys.readouterr().err)
    assert f"{path}" in error
    assert "name another file" in error


# ---- doubts -----------------------------------------------------------------------------------------------------


def test_who_is_doubtful():
    row = {"ratio": 5.0, "ratio_p20": 4.0, "ratio_p80": 6.0, "waited": 0.05}
    assert not timing.doubtful(row)
    assert not timing.doubtful({"ratio": 5.0})
    assert not timing.doubtful({**row, "waited": None})
    assert timing.doubtful({**row, "ratio_p80": 8.1})
    assert timing.doubtful({**row, "waited": 0.11})  # steady, beside other work: torch waits in every operation


def test_a_crowd_is_seen(monkeypatch, tmp_path):
    """By what the system counts; where it counts nothing, by the load average."""
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
    child = run_python("-c", code)
    assert child.returncode == 0, child.stderr
    assert float(child.stdout) > timing.CROWDED


def test_no_verdict_from_doubtful_times():
    fast, slow = made_up("eager", 6765.0, waited=0.98), made_up("compile", 0.5, waited=0.98)
    nobody = "Nobody was faster."
    assert suite.verdict([made_up("eager", 5.0), made_up("linear", 0.5)], nobody) == [nobody]
    (line,) = suite.verdict([fast, slow], nobody)
    assert line.startswith("No verdict: 2 of 2 ratios are marked with ?, doubtful: ")
    assert suite.losses([slow]) == []
    lines = suite.verdict([fast, made_up("compile", 0.5)], nobody)
    assert lines[:2] == ["Where we lose:", "  npu step 5x3x2, 1 threads: compile takes 0.50 of our time"]
    assert lines[2].startswith("No verdict: 1 of 2")
    assert "6765.00x? " in suite.show({**fast, "ratio_p20": 6700.0, "ratio_p80": 6800.0})


def test_doubtful_numbers_are_marked_in_the_tables():
    rows = [{**row, "waited": 0.5} for row in made_up_rows()]
    line = next(line for line in report.markdown(rows).splitlines() if "5, 3, 2, 1" in line)
    for cell in ("100 µs?", "5.00?", "0.80?", "2.00?"):
        assert f" {cell} |" in line
    assert "**" not in line
    assert f"A number with ? is {timing.DOUBT}." in report.markdown(rows)
    assert "?" not in report.markdown(made_up_rows())


def test_the_later_of_two_rows_counts():
    rows = [made_up("ours", 1.0), made_up("eager", 0.5), made_up("eager", 3.0)]
    text = report.markdown(rows)
    assert "3.00" in text
    assert "0.50" not in text


# ---- the report -----------------------------------------------------------------------------------------------------


def made_up(rival: str, ratio: float, size: Size = TINY, threads: int = 1, **more: object) -> dict[str, object]:
    where = {"processor": "Abacus 3", "instruction_set": "beads", "torch": "9", "npu_kernels": "8", "commit": "c0ffee"}
    row = {**Case("npu", STEP, size).to_dict(), "threads": threads, "rival": rival, "ratio": ratio}
    return {**row, "median_us": 100 * ratio, "error": 1e-7, "environment": where, **more}


def made_up_rows() -> list[dict[str, object]]:
    return [
        made_up("ours", 1.0, peak_bytes=2**20, share_of_limit=0.5),
        made_up("eager", 5.0, error=2e-7, peak_bytes=4 * 2**20),
        made_up("compile", 0.8),
        made_up("linear", 0.5, error=None),
        made_up("ours", 1.0, Size(500, 30, 20)),
        made_up("eager", 4.0, Size(500, 30, 20)),
    ]


def test_markdown_table():
    lines = report.markdown(made_up_rows()).splitlines()
    assert "Abacus 3, kernels for beads, torch 9, npu_kernels 8 at c0ffee:" in lines
    head = [cell.strip() for cell in next(line for line in lines if line.startswith("| layer")).split("|")[1:-1]]
    row = [cell.strip() for cell in next(line for line in lines if "5, 3, 2, 1" in line).split("|")[1:-1]]
    cells = dict(zip(head, row, strict=True))
    assert cells["ours"] == "100 µs"
    assert cells["eager"] == "5.00"
    assert cells["compile"] == "**0.80**"  # lost, and shown
    assert cells["ours / linear"] == "2.00"
    assert cells["error (eager's)"] == "1.0e-07 (2.0e-07)"
    assert cells["peak MiB (eager's)"] == "1.0 (4.0)"
    assert cells["of the limit"] == "50 %"


def test_machines_and_precisions_have_their_own_tables():
    other = made_up("ours", 1.0, environment={"processor": "Slide rule"})
    text = report.markdown([*made_up_rows(), other, made_up("ours", 1.0, matmul_precision="high")])
    assert text.count("| layer |") == 3
    assert 'matmul precision "high"' in text


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("option", ["--page", "--readme"])
def test_a_block_is_replaced_and_nothing_else(option, tmp_path):
    file, page = write(tmp_path / "rows.jsonl", made_up_rows()), tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    for _ in range(2):  # again gives the same
        assert report.main([str(file), option, str(page)]) == 0
        text = page.read_text()
        assert text.startswith(f"before\n{report.BEGIN}\n" + ("A rival's" if option == "--page" else "Abacus 3"))
        assert text.endswith(f"{report.END}\nafter\n")
        assert "old" not in text
        assert text.count("| --- |\n") == 1


def test_the_short_table_has_its_rows_and_every_one_that_we_lose():
    shown, other = report.SHORT[2], Size(5, 4, 3)
    rows = [made_up("ours", 1.0, shown.size, threads=2), made_up("eager", 3.0, shown.size, threads=2)]
    rows += [made_up("ours", 1.0, other), made_up("eager", 3.0, other)]  # won, and no row of the short table
    rows += [made_up("ours", 1.0, TINY), made_up("eager", 0.9, TINY), made_up("linear", 0.5, other)]
    lines = [line for line in report.short(rows).splitlines() if line.startswith("| NPU")]
    assert len(lines) == 2
    assert "| 100, 6, 2, 1 |" in lines[0]
    assert "1 thread | 5, 3, 2, 1 |" in lines[1]
    assert "**0.90**" in lines[1]


def test_a_processor_is_chosen_by_name_and_shown_at_its_best():
    def on(processor: str, isa: str, commit: str, date: str) -> list[dict[str, object]]:
        where = {"processor": processor, "instruction_set": isa, "commit": commit, "date": date}
        return [made_up(rival, 2.0, report.SHORT[2].size, environment=where) for rival in ("ours", "eager")]

    rows = on("Abacus 3", "avx512", "newer", "2026-02") + on("Abacus 3", "avx512", "older", "2026-01")
    rows += on("Abacus 3", "avx2", "held", "2026-03") + on("Slide rule", "amx", "else", "2026-03")
    rows += [{**row, "matmul_precision": "medium"} for row in on("Abacus 3", "amx", "medium", "2026-03")]
    assert "at newer;" in report.short(rows, "Abacus 3")
    assert "at else;" in report.short(rows, "Slide rule")
    for name in (None, "Abacus 4"):
        with pytest.raises(report.ReportError, match="must name one of: Abacus 3, Slide rule"):
            report.short(rows, name)
    assert report.markdown(rows).count("\n### ") == 5  # the page has them all


@pytest.mark.parametrize("text", ["", f"{report.END} {report.BEGIN}", f"{report.BEGIN}{report.BEGIN}{report.END}"])
def test_a_readme_without_markers_is_left_alone(text, tmp_path, capsys):
    file, readme = write(tmp_path / "rows.jsonl", made_up_rows()), tmp_path / "README.md"
    readme.write_text(text)
    assert report.main([str(file), "--readme", str(readme)]) == 1
    assert readme.read_text() == text
    assert f"report: {readme} needs {report.BEGIN}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "there are no rows"),
        ("{", "line 1 is no JSON"),
        ("[]", "no row of the suite"),
        ('{"layer": 1}', "without kind"),
    ],
)
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


def test_report_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    file, picture = write(tmp_path / "rows.jsonl", made_up_rows()), tmp_path / "picture.png"
    assert report.main([str(file), "--picture", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    write(file, [made_up("ours", 1.0, MODELS)])
    assert report.main([str(file), "--picture", str(picture)]) == 1
    assert "single models" in capsys.readouterr().err


# ---- the guard ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not cpu.available()[0], reason=f"no C++ kernels: {cpu.available()[1]}")
@pytest.mark.parametrize(
    "case",
    [
        Case("npu", FORWARD, Size(100, 6, 2)),
        Case("npu", STEP, Size(100, 6, 2)),
        Case("npu", STEP, Size(100, 100, 1)),
        Case("realnpu", STEP, Size(100, 6, 2)),
        Case("npu", STEP, Size(100, 6, 2, 20)),
    ],
    ids=str,
)
def test_small_layers_are_faster_than_eager(case, benchmark):
    """By processor time, in one thread: there is a verdict on a busy machine too."""
    operands = draw(case)
    runs = {name: rivals.build(name, case, operands).run for name in (rivals.OURS, rivals.EAGER)}
    times = timing.interleaved(runs, 0.2, clock=time.process_time)
    ratio = timing.ratios(times[rivals.EAGER], times[rivals.OURS])
    benchmark.extra_info["eager / ours"] = ratio.median
    benchmark.pedantic(runs[rivals.OURS], rounds=5, iterations=20)
    assert ratio.median > 1.5, f"eager / ours: {ratio}"
