"""What shells and notebooks show of a result: tables in text and in HTML, equations in LaTeX."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence

# A name of several letters, which LaTeX would set as a product of its letters.
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")


def table(
    caption: str, header: Sequence[str], rows: Iterable[Sequence[object]], note: str = ""
) -> str:
    """Return an HTML table and a note below it; all of them are text and are escaped."""

    def line(cells: Iterable[object], tag: str) -> str:
        texts = (f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells)
        return f"<tr>{''.join(texts)}</tr>"

    above = html.escape(caption).replace("\n", "<br>")
    head = f"<thead>{line(header, 'th')}</thead>" if header else ""
    body = "".join(line(row, "td") for row in rows)
    below = f"<p>{html.escape(note)}</p>" if note else ""
    above = f"<caption><code>{above}</code></caption>" if above else ""
    return f"<table>{above}{head}<tbody>{body}</tbody></table>{below}"


def text(caption: str, rows: Iterable[tuple[object, object]]) -> str:
    """Return a caption and below it rows of a name and a value, as `print` shows them."""
    lines = [f"  {name}: {value}" for name, value in rows]
    return "\n".join([caption, *lines])


def upright(equation: str) -> str:
    """Return LaTeX whose names of several letters are no products of these letters."""
    return WORD.sub(r"\\,\\mathrm{\g<0>}", equation).replace(r"_{\,", "_{")


def latex(write: Callable[[], Sequence[str]]) -> str | None:
    """Return the equations that `write` returns as one block of LaTeX; None without sympy.

    None too for a number that float64 cannot hold.
    """
    try:
        equations = write()
    except (ImportError, OverflowError):
        return None
    rows = r" \\ ".join(upright(line).replace(" = ", " &= ", 1) for line in equations)
    return rf"$\displaystyle \begin{{aligned}} {rows} \end{{aligned}}$"
