"""Look at the built pages in a headless browser, as a phone and a desktop show them.

    python -m tools.site [FOLDER] [--quick]

Every page of FOLDER (build/docs) is opened 390 and 1366 pixels wide, light and dark. Faults are: a
page that scrolls sideways, a picture that does not load or has no alternative text, an error in
the browser's console, and text whose contrast is below that of WCAG 2.1, level AA. --quick opens
the first page in every way, the others at 390 pixels in the light theme. Needs PySide6-Addons
with QtWebEngine.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "build" / "docs"
WIDTHS = 390, 1366  # pixels
THEMES = "light", "dark"
HEIGHT = 900  # pixels
TIME_LIMIT = 30_000  # milliseconds for one page
HANGING = 180  # seconds of one page after which the browser itself hangs: then the program ends
# Not written here: the pages of Sphinx, and sources with highlighting.
LEFT_OUT = "genindex", "search", "py-modindex", "_modules", "_static", "_sources"

# Faults of the page as it stands, a list of texts. Contrast is that of text nodes against the
# first opaque background behind them.
SCRIPT = """
(() => {
  const faults = [], root = document.documentElement;
  if (root.scrollWidth > window.innerWidth + 1) {
    const wide = [...document.querySelectorAll("main *")].find(
      e => e.getBoundingClientRect().right > window.innerWidth + 1);
    const name = wide ? `, <${wide.tagName}>` : "";
    faults.push(`scrolls sideways: ${root.scrollWidth} pixels${name}`);
  }
  for (const image of document.images) {
    const name = image.getAttribute("src");
    if (!image.complete || image.naturalWidth === 0) faults.push(`picture ${name} does not load`);
    if (!image.alt) faults.push(`picture ${name} has no alternative text`);
  }
  const numbers = color => color.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b]
    .map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const color = numbers(getComputedStyle(element).backgroundColor);
      if (color.length < 4 || color[3] > 0.5) return color;
    }
    return [255, 255, 255];
  };
  const seen = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility()
        || element.closest("svg, math, script, style") || element.offsetWidth < 2) continue;
    const style = getComputedStyle(element), [a, b] = [numbers(style.color), behind(element)];
    const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p);
    const size = parseFloat(style.fontSize), bold = style.fontWeight >= 700;
    const needed = size >= 24 || (bold && size >= 18.66) ? 3 : 4.5, ratio = (x + 0.05) / (y + 0.05);
    const key = `${style.color} on ${b.slice(0, 3)}`;
    if (ratio < needed && !seen.has(key)) {
      seen.add(key);
      const text = walker.currentNode.textContent.trim().slice(0, 30);
      faults.push(`contrast ${ratio.toFixed(2)} of ${key}: "${text}"`);
    }
  }
  return JSON.stringify(faults);
})()
"""


def pages(folder: Path) -> list[Path]:
    """All pages that are written here, the first one first."""
    files = sorted(folder.rglob("*.html"))
    return sorted(
        (page for page in files if page.relative_to(folder).parts[0].split(".")[0] not in LEFT_OUT),
        key=lambda page: page != folder / "index.html",
    )


def views(folder: Path, quick: bool) -> list[tuple[Path, int, str]]:
    """The pages to open, with width and theme."""
    looks = list(itertools.product(WIDTHS, THEMES))
    return [
        (page, *look)
        for number, page in enumerate(pages(folder))
        for look in (looks[:1] if quick and number else looks)
    ]


class Browser:
    """A page without a display."""

    def __init__(self) -> None:
        os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
        os.environ.setdefault("QTWEBENGINE_DISABLE_SANDBOX", "1")  # as root there is none
        os.environ.setdefault("QTWEBENGINE_CHROMIUM_FLAGS", "--disable-gpu --disable-dev-shm-usage")
        os.environ.setdefault("QT_LOGGING_RULES", "*=false")
        from PySide6.QtWebEngineCore import QWebEnginePage
        from PySide6.QtWebEngineWidgets import QWebEngineView
        from PySide6.QtWidgets import QApplication

        self.errors: list[str] = []
        errors = self.errors

        class Page(QWebEnginePage):
            def javaScriptConsoleMessage(
                self, level: Any, text: str, line: int, source: str
            ) -> None:
                if level == QWebEnginePage.JavaScriptConsoleMessageLevel.ErrorMessageLevel:
                    errors.append(f"console: {text}")

        self.application = QApplication(sys.argv[:1])
        self.view = QWebEngineView()
        self.page = Page(self.view)
        self.view.setPage(self.page)
        self.view.show()

    def wait_for(self, begin: Any) -> Any:
        """Call ``begin(done)``; return what it calls ``done`` with, None after the time limit."""
        from PySide6.QtCore import QEventLoop, QTimer

        loop, results = QEventLoop(), [None]

        def done(result: Any) -> None:
            results[0] = result
            loop.quit()

        QTimer.singleShot(0, lambda: begin(done))
        timer = QTimer(singleShot=True, interval=TIME_LIMIT)
        timer.timeout.connect(loop.quit)
        timer.start()
        loop.exec()
        return results[0]

    def faults(self, path: Path, width: int, theme: str) -> list[str]:
        """What is wrong with a page."""
        from PySide6.QtCore import QUrl

        self.errors.clear()
        self.view.resize(width, HEIGHT)

        def load(done: Any) -> None:
            self.page.loadFinished.connect(done)
            self.page.load(QUrl.fromLocalFile(str(path.resolve())))

        loaded = self.wait_for(load)
        self.page.loadFinished.disconnect()
        if not loaded:
            return ["does not load"]
        script = f"document.body.dataset.theme = '{theme}'; " + SCRIPT
        answer = self.wait_for(lambda done: self.page.runJavaScript(script, 0, done))
        return [*(json.loads(answer) if answer else ["no answer"]), *self.errors]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the faults; return 1 where there are some."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.site", description="Faults of the built pages in a browser."
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="build/docs")
    parser.add_argument("--quick", action="store_true", help="most pages in one way only")
    options = parser.parse_args(arguments)
    todo = views(options.folder, options.quick)
    if not todo:
        parser.error(f"{options.folder} has no pages: run `make docs` before")
    faulthandler.dump_traceback_later(HANGING, exit=True)
    browser, count = Browser(), 0
    for path, width, theme in todo:
        faulthandler.dump_traceback_later(HANGING, exit=True)
        for fault in browser.faults(path, width, theme):
            count += 1
            name = path.relative_to(options.folder)
            print(f"{name}, {width} pixels, {theme}: {fault}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    print(f"{len(todo)} views of {len({path for path, *_ in todo})} pages: {count} faults")
    return 1 if count else 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # Chromium may hang where it takes itself apart
