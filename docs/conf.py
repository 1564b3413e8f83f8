"""Settings of the documentation's generator: `make docs`."""

from __future__ import annotations

import re
from typing import Any

project = "npu_kernels"
copyright = "the npu_kernels authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
suppress_warnings = [
    "myst.header"
]  # a page may begin below the first level, as those that others are included from
default_role = "py:obj"  # `NPU` in a docstring is a link where there is something to link to
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
add_module_names = False
html_theme = "furo"
html_title = "npu_kernels"
html_theme_options = {"sidebar_hide_name": False}
exclude_patterns = ["_build"]

# Files beside docs/ that have a page here: links to the file, which also work in the repository, go
# to the page.
PAGES = {
    "../CHANGELOG.md": "changelog.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../benchmarks/NOTES.md": "notes.md",
    "../benchmarks/README.md": "benchmarks.md",
    "../benchmarks/results/README.md": "results.md",
    "../benchmarks/results/paper/report.md": "paper-report.md",
}

COLUMNS = re.compile(r"\S {2,}\S")


def _paragraphs(lines: list[str]) -> list[list[str]]:
    """The lines between blank ones."""
    found: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [paragraph for paragraph in found if paragraph]


def literal_blocks(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Docstrings are written for `help()`: formulas are indented, and lists stand in columns. Mark
    both as literal."""
    new: list[str] = []
    literal = False
    for paragraph in _paragraphs(lines):
        indented = all(line.startswith("    ") for line in paragraph)
        example = paragraph[0].lstrip().startswith(">>>")
        columns = len(paragraph) > 1 and all(COLUMNS.search(line) for line in paragraph)
        if (indented or columns) and not example and "==" not in paragraph[0]:
            if not literal:
                new += ["::", ""]
            literal = True
            paragraph = [line if indented else "    " + line for line in paragraph]
        else:
            literal = False
        new += [*paragraph, ""]
    lines[:] = new


def own_pages(app: Any, name: str, source: list[str]) -> None:
    """Links to files that have a page go to the page."""
    for file, page in PAGES.items():
        source[0] = source[0].replace(f"]({file}", f"]({page}")


def setup(app: Any) -> None:
    app.connect("source-read", own_pages)
    app.connect(
        "autodoc-process-docstring", literal_blocks, priority=400
    )  # before napoleon reads the sections
