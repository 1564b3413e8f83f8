"""`python -m tools.site`: which pages it opens, and the faults that it sees."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.building import ROOT
from tools import site

BAD = """<html><body><main>
<div style="width: 900px">wide</div><img src="nothing.png">
<p style="color: #999; background: #fff">faint</p><script>undefinedFunction();</script>
</main></body></html>"""
GOOD = "<html><body><main><p>Text.</p></main></body></html>"


def folder(path: Path, **pages: str) -> Path:
    for name, text in pages.items():
        (path / f"{name}.html").write_text(text)
    return path


def test_views(tmp_path: Path) -> None:
    folder(tmp_path, a=GOOD, index=GOOD, genindex=GOOD)
    (tmp_path / "_modules").mkdir()
    folder(tmp_path / "_modules", torch=GOOD)
    index, a = tmp_path / "index.html", tmp_path / "a.html"
    assert site.pages(tmp_path) == [index, a]
    ways = [(390, "light"), (390, "dark"), (1366, "light"), (1366, "dark")]
    assert site.views(tmp_path, quick=False) == [
        (page, *view) for page in (index, a) for view in ways
    ]
    assert site.views(tmp_path, quick=True) == [
        *((index, *view) for view in ways),
        (a, 390, "light"),
    ]


def test_faults(tmp_path: Path) -> None:
    """In a process of its own: a program has one Qt application."""
    pytest.importorskip("PySide6.QtWebEngineWidgets", reason="Qt's browser is not installed")
    command = [sys.executable, "-m", "tools.site", str(folder(tmp_path, a=BAD, index=GOOD))]
    run = subprocess.run(
        [*command, "--quick"], cwd=ROOT, capture_output=True, text=True, timeout=400
    )
    assert run.returncode == 1, run.stderr
    start = "a.html, 390 pixels, light: "
    assert run.stdout.splitlines() == [
        start + "scrolls sideways: 908 pixels, <DIV>",
        start + "picture nothing.png does not load",
        start + "picture nothing.png has no alternative text",
        start + 'contrast 2.85 of rgb(153, 153, 153) on 255,255,255: "faint"',
        start + "console: Uncaught ReferenceError: undefinedFunction is not defined",
        "5 views of 2 pages: 5 faults",
    ]
