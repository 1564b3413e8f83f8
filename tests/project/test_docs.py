"""Every example of the documents and docstrings runs as copied, and prints what it says."""

import contextlib
import doctest
import enum
import inspect
import io
import re

import pytest
import torch

from tests.project.test_structure import WITHOUT_ENTRY, public_values
from tests.support import examples
from tests.support.examples import ROOT, Example

NUMBER = re.compile(r"[-+]?\d+\.\d+e[-+]\d+")
EXAMPLES = [
    example for page in examples.pages() for example in examples.of_page(page)
] + examples.of_docstrings()
# Tests by the place of an example on its page: tests/slow.txt has them, and lines move.
PAGES = [example.name.partition(":")[0] for example in EXAMPLES]
NUMBERED = [f"{page}, {PAGES[:k].count(page) + 1}" for k, page in enumerate(PAGES)]


@pytest.fixture(autouse=True)
def reader(tmp_path, monkeypatch):
    """A folder and a start for random numbers; the process is as before afterwards."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)


def run_block(example: Example) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example.code, example.name, "exec"), {"__name__": "__main__"})
    if example.said is None:
        return
    # The same words; errors in scientific notation to 20 %, as another processor's training may end
    # in other digits.
    assert NUMBER.sub("#", printed.getvalue()).split() == NUMBER.sub("#", example.said).split()
    actual, expected = (
        torch.tensor([float(n) for n in NUMBER.findall(t)])
        for t in (printed.getvalue(), example.said)
    )
    torch.testing.assert_close(actual, expected, rtol=0.2, atol=1e-5)


def run_session(example: Example) -> None:
    test = doctest.DocTestParser().get_doctest(
        example.code, {"__name__": "__main__"}, example.name, example.name, 0
    )
    report = io.StringIO()
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(test, out=report.write)
    result = runner.summarize(verbose=False)
    assert result.attempted > 0
    assert not result.failed, report.getvalue()


@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # torch._dynamo's own
@pytest.mark.parametrize("example", EXAMPLES, ids=NUMBERED)
def test_example(example):
    """Alone, with names of its own only; what belongs together says so on its page."""
    pytest.importorskip("sympy", reason="sympy is not installed")
    if "torchdiffeq" in example.code:
        pytest.importorskip("torchdiffeq", reason="torchdiffeq is not installed")
    if "NPURegressor" in example.code or "ode.fit(" in example.code:
        for name in ("sklearn", "pandas", "pint"):
            pytest.importorskip(name, reason=f"{name} is not installed")
    (run_session if example.kind == "pycon" else run_block)(example)


def test_examples_are_found():
    names = {example.name.partition(":")[0] for example in EXAMPLES}
    assert {
        "README.md",
        "docs/choosing-a-layer.md",
        "npu_kernels/fitting/_fit.py",
        "npu_kernels/ode/_rollout.py",
    } <= names


def test_code_in_docstrings_is_an_example_that_runs():
    texts = [
        pair
        for source in sorted((ROOT / "npu_kernels").rglob("*.py"))
        for pair in examples.docstrings(source)
    ]
    assert [(name, code) for name, text in texts for code in examples.unmarked_code(text)] == []


def test_unmarked_code_is_noticed():
    assert examples.unmarked_code("Text\n\n    y = f(x)\n    print(y)\n") == ["y = f(x)\nprint(y)"]
    assert examples.unmarked_code("Text\n\n    y = A x\n\n    >>> f(1)\n") == []


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


# ---- the site: what `make docs` checks in full ----------------------------------------------


PUBLIC_VALUES = {
    name: value
    for name, value in public_values().items()
    if name.rpartition(".")[0] not in WITHOUT_ENTRY
}
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")


ORPHAN = "---\norphan: true\n---\n"  # Sphinx's word for a page that is in no menu
MENU = re.compile(r"^```\{toctree\}\n(?::.*\n)*\n([^`]*)^```", re.M)
CELL = re.compile(r"^```\{code-cell\} ipython3\n(?:---\n.*?^---\n)?(.*?)^```$", re.M | re.S)
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
LONGEST = {"performance.md": 3500, "paper.md": 2500}  # words of a page that people read


def test_every_page_is_in_the_navigation():
    """Pages of generated tables are not: a page of the menu links to them."""
    docs = ROOT / "docs"
    texts = {str(page.relative_to(docs))[:-3]: page.read_text() for page in docs.rglob("*.md")}
    menu = [name for text in texts.values() for tree in MENU.findall(text) for name in tree.split()]
    tables = {name for name, text in texts.items() if text.startswith(ORPHAN)}
    assert len(menu) == len(set(menu))
    assert texts.keys() - {"index"} - tables == set(menu)
    assert tables == {name for name in texts if name.startswith("tables/")}
    shown = "".join(texts[name] for name in menu)
    assert [name for name in tables if not re.search(rf"\]\((\.\./)?{name}\.md[)#]", shown)] == []


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorials(page):
    """Notebooks that `make docs` executes: each downloads, and ends with what can go wrong."""
    text = page.read_text()
    head, _, body = text.removeprefix("---\n").partition("\n---\n")
    assert "format_name: myst" in head
    assert f"<{page.stem}.ipynb>`" in body
    assert re.findall(r"^## (.*)", body, re.M)[-1] == "What can go wrong"
    cells = [re.sub(r"^%.*", "", cell, flags=re.M) for cell in CELL.findall(body)]
    assert len(cells) == body.count("```{code-cell}") > 5
    drawn = [
        cell for cell in CELL.finditer(body) if "plt.subplots" in cell[1] or "draw(" in cell[1]
    ]
    assert drawn
    for cell in drawn:  # a picture has an alternative text; a function draws nothing yet
        assert "alt: " in cell[0] or "def " in cell[1], cell[1]
    for cell in cells:
        compile(cell, page.name, "exec")


@pytest.mark.parametrize(("name", "words"), LONGEST.items())
def test_pages_for_people_are_short(name, words):
    assert len((ROOT / "docs" / name).read_text().split()) <= words


def anchor(heading: str) -> str:
    """The anchor that GitHub and the generator give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def test_links_between_pages():
    broken = []
    for page in examples.pages():
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        for target, fragment in LINK.findall(text):
            if "://" in target:
                continue
            file = page if not target else (page.parent / target).resolve()
            headings = (
                re.findall(r"^#+ (.*)", file.read_text(), re.M)
                if file.suffix == ".md" and file.exists()
                else []
            )
            if not file.exists() or (fragment and fragment[1:] not in map(anchor, headings)):
                broken.append(f"{page.name}: {target}{fragment}")
    assert broken == []


@pytest.mark.parametrize("name", sorted(PUBLIC_VALUES))
def test_help_is_complete_by_itself(name):
    """A docstring names every argument, and sends nobody elsewhere for one."""
    value = PUBLIC_VALUES[name]
    text = inspect.getdoc(value)
    assert text
    assert (
        re.findall(
            r"(?i)(?:arguments|errors|shapes)\b[^.]* as (?:for |in )?`|: as (?:for|in) `", text
        )
        == []
    )
    if inspect.isclass(value) and issubclass(value, (enum.Enum, torch.optim.Optimizer)):
        return  # a member is no argument; the optimizer's arguments are torch's
    skipped = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [
        p.name for p in inspect.signature(value).parameters.values() if p.kind not in skipped
    ]
    assert [
        p for p in parameters if not p.startswith("_") and not re.search(rf"\b{p}\b", text)
    ] == []
