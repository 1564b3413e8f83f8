"""What shells and notebooks show of a result: tables, and the names of its variables."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from keyword import iskeyword

WIDTH = 79  # columns of a report
# Greek letters as LaTeX has them. Not pi, which is a number in formulas.
GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|upsilon"
    "|phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Upsilon|Phi|Psi|Omega"
)
SYMBOL = re.compile(rf"([A-Za-z]|{GREEK})(?:_?(\d+)|_([A-Za-z0-9]+))?('{{0,2}})")
# Characters that mean something else, or have other distances, in formulas of LaTeX and MathJax
SPECIAL = {c: f"\\{c}" for c in " _%$#&{}"} | {c: f"{{{c}}}" for c in "+*/=<>,;:"}
SPECIAL |= {c: rf"\text{{{c}}}" for c in '-"`'}  # a hyphen, not a minus
SPECIAL |= {"^": r"\hat{}", "~": r"{\sim}", "\\": r"\backslash "}


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


def wrapped(lines: Iterable[str]) -> str:
    """Return lines of words, broken at WIDTH columns; continuations are indented by two more."""
    broken = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        broken += textwrap.wrap(
            line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]
    return "\n".join(broken)


def written_name(name: str) -> str:
    """Return a name as a formula in text has it: in backquotes where Python could not read it."""
    return name if name.isidentifier() and not iskeyword(name) else f"`{name}`"


def latex_name(name: str) -> str:
    """Return a name as LaTeX sets it in a formula.

    A letter is a symbol, which may have an index: ``x0`` and ``x_0`` are ``x_{0}``, ``T_max`` is
    ``T_{\\mathrm{max}}``. Any other name is upright, character by character.
    """
    symbol = SYMBOL.fullmatch(name)
    if symbol is None:
        escaped = "".join(SPECIAL.get(c, c) for c in name)
        escaped = re.sub("[^\x00-\x7f]+", r"\\text{\g<0>}", escaped)
        return rf"\mathrm{{{escaped}}}"
    letter, number, word, primes = symbol.groups()
    index = number or word or ""
    if len(index) > 1 and not index.isdigit():
        index = rf"\mathrm{{{index}}}"
    letter = f"\\{letter}" if len(letter) > 1 else letter
    return letter + (f"_{{{index}}}" if index else "") + primes


def latex(write: Callable[[], Sequence[str]]) -> str | None:
    """Return the equations that `write` returns as one block of LaTeX; None without sympy.

    None too for a number that float64 cannot hold.
    """
    try:
        equations = write()
    except (ImportError, OverflowError):
        return None
    rows = r" \\ ".join(line.replace(" = ", " &= ", 1) for line in equations)
    return rf"$\displaystyle \begin{{aligned}} {rows} \end{{aligned}}$"
