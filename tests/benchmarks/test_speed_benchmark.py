"""`pytest benchmarks/speed`: what it keeps, and that it fails where ours is slower than it was."""

import json
from pathlib import Path

import pytest

from benchmarks.speed import test_speed as speed

NAME = "npu forward 100x6x2"


def kept(file: Path, ours: float, eager: float) -> None:
    rows = [
        {"params": {"name": NAME, "program": program}, "stats": {"min": seconds}}
        for program, seconds in (("ours", ours), ("eager", eager))
    ]
    file.write_text(json.dumps({"benchmarks": rows}))


def test_the_least_ratio_of_several_processors_is_kept(tmp_path: Path) -> None:
    kept(tmp_path / "a.json", 1.0, 6.0)
    kept(tmp_path / "b.json", 2.0, 8.0)
    assert speed.kept_ratios(sorted(tmp_path.iterdir())) == {NAME: 4.0}


def test_every_case_has_a_kept_ratio() -> None:
    ratios = speed.kept_ratios(sorted(speed.RESULTS.glob("speed-*.json")))
    assert ratios.keys() == speed.CASES.keys()
    assert min(ratios.values()) > 1


@pytest.mark.parametrize(("eager", "fails"), [(1e6, True), (1e-6, False)])
def test_a_lower_ratio_fails_when_it_is_measured_again(
    eager: float, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(tmp_path / "speed-some.json", 1.0, eager)
    monkeypatch.setattr(speed, "RESULTS", tmp_path)
    monkeypatch.setattr(speed, "SECONDS_OF_A_CASE", 0.05)
    monkeypatch.setattr(speed, "least_seconds", {(NAME, "ours"): 1.0, (NAME, "eager"): 1e-7})
    if not fails:
        speed.test_ratio(NAME)
        return
    with pytest.raises(AssertionError, match=f"{NAME}: .* times eager's speed"):
        speed.test_ratio(NAME)
