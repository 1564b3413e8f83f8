"""`pytest benchmarks/speed`: what it keeps, and that it fails where ours is slower than it was."""

import json
from pathlib import Path

import pytest

from benchmarks.speed import test_speed as speed

NAME = "npu forward 100x6x2"


def kept(file: Path, ours: float, eager: float, instruction_set: str = "AVX2") -> None:
    rows = [
        {"params": {"name": NAME, "program": program}, "stats": {"min": seconds}}
        for program, seconds in (("ours", ours), ("eager", eager))
    ]
    machine = {"torch_instruction_set": instruction_set}
    file.write_text(json.dumps({"machine_info": machine, "benchmarks": rows}))


def test_the_least_ratio_of_several_processors_is_kept(tmp_path: Path) -> None:
    kept(tmp_path / "a.json", 1.0, 6.0)
    kept(tmp_path / "b.json", 2.0, 8.0)
    kept(tmp_path / "c.json", 2.0, 6.0, "AVX512")
    files = sorted(tmp_path.iterdir())
    assert speed.kept_ratios(files, "AVX2") == {NAME: 4.0}
    assert speed.kept_ratios(files, "AVX512") == {NAME: 3.0}
    assert speed.kept_ratios(files, "DEFAULT") == {NAME: 3.0}  # of all


@pytest.mark.parametrize("instruction_set", ["AVX2", "AVX512"])
def test_every_case_has_a_kept_ratio(instruction_set: str) -> None:
    ratios = speed.kept_ratios(sorted(speed.RESULTS.glob("speed-*.json")), instruction_set)
    assert ratios.keys() == speed.CASES.keys()
    assert min(ratios.values()) > 1


@pytest.mark.parametrize(("eager", "fails"), [(1e6, True), (1e-6, False)])
def test_a_lower_ratio_fails_when_it_is_measured_again(
    eager: float, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(tmp_path / "speed-some.json", 1.0, eager)
    monkeypatch.setattr(speed, "RESULTS", tmp_path)
    monkeypatch.setattr(speed, "SECONDS_OF_A_CASE", 0.05)
    monkeypatch.setattr(speed, "min_seconds", {(NAME, "ours"): 1.0, (NAME, "eager"): 1e-7})
    if not fails:
        speed.test_ratio(NAME)
        return
    with pytest.raises(AssertionError, match=f"{NAME}: .* times eager's speed"):
        speed.test_ratio(NAME)
