"""Settings of the documentation's generator: `make docs`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

project = "npu_kernels"
copyright = "the npu_kernels authors"
SETTINGS = (Path(__file__).parents[1] / "pyproject.toml").read_text()
(release,) = re.findall(r'^version = "(.*)"', SETTINGS, re.M)
extensions = [
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
myst_enable_extensions = ["colon_fence", "dollarmath"]
# The tutorials are executed. One whose text has not changed is taken from the cache, also where the
# package has changed: `make clean` runs all of them.
nb_execution_mode = "cache"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # their matrices are small
nb_execution_raise_on_error = True
nb_execution_timeout = 120  # seconds of a cell
nb_merge_streams = True
copybutton_exclude = ".linenos, .gp, .go"  # prompts and outputs
autosummary_generate = False
html_math_renderer = "mathml"  # by the browser itself: the pages need no network
myst_heading_anchors = 4
suppress_warnings = [
    "myst.header"
]  # a page may begin below the first level, as those that others are included from
default_role = "py:obj"  # `NPU` in a docstring is a link where there is something to link to
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"exclude-members": "reset_parameters, extra_repr"}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
add_module_names = False
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"npu_kernels {release}"
html_theme_options: dict[str, object] = {"sidebar_hide_name": False}
for address in re.findall(r'^Repository = "(.*)"', SETTINGS, re.M):  # none before publication
    html_theme_options |= {
        "source_repository": address, "source_branch": "main", "source_directory": "docs/",
    }  # fmt: skip
exclude_patterns = ["_build"]

# Files beside docs/ that have a page here: links to the file, which also work in the repository, go
# to the page.
PAGES = {
    "../CHANGELOG.md": "project.md#changelog",
    "../CONTRIBUTING.md": "project.md#contributing",
}

DOWNLOAD = re.compile(r"\s*\{nb-download\}`[^`]*`\.?")
RELATIVE_LINK = re.compile(r"\[([^\]]*)\]\(\.\./([^)]*)\)")
LINK_OUTSIDE = re.compile(r"\[([^\]]*)\]\((\.\./[^)#]*\.md)[^)]*\)")

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
    """Links to files outside docs/ go to their page; without a page, the file is a download."""
    if "/" in name:  # all others link to no such file
        return
    for file, page in PAGES.items():
        source[0] = source[0].replace(f"]({file}", f"]({page}")
    source[0] = LINK_OUTSIDE.sub(r"{download}`\1 <\2>`", source[0])


def notebooks_alone(app: Any, exception: Exception | None) -> None:
    """A notebook is read without the pages beside it: its links become the names of the pages."""
    for path in Path(app.outdir, "_downloads").rglob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                text = DOWNLOAD.sub("", cell.source)
                cell.source = RELATIVE_LINK.sub(r"\1, `docs/\2`", text)
        nbformat.write(notebook, path)


def mathml(self: Any, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML."""
    is_block = isinstance(node, nodes.math_block)
    # Notebooks' outputs keep their dollars.
    tex = node.astext().strip().strip("$").removeprefix(r"\displaystyle")
    self.body.append(tex2mathml(tex, as_block=is_block))
    raise nodes.SkipNode


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))
    app.connect("source-read", own_pages)
    app.connect("build-finished", notebooks_alone)
    app.connect(
        "autodoc-process-docstring", literal_blocks, priority=400
    )  # before napoleon reads the sections
