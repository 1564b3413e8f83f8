"""Words that pages, docstrings, comments and messages do not have: the field has standard ones."""

import ast
import io
import re
import tokenize

import pytest

from tests.project.test_structure import modules, public_values
from tests.support.examples import ROOT

# A word that is not written, on pages and in the package, and what is written instead.
WORDS = {
    r"told apart|tell(s|ing)? .{0,20} apart": "distinguishable",
    r"same bits|to the bit": "bitwise identical",
    r"whole (number|exponent)s?": "integers",
    r"wild": "outliers",
    r"eager formulas?": "the eager implementation",
    r"one-pass": "fused",
    r"time loops?": "ODE solver",
    r"stretch(es)?": "segment, stage",
    r"without a notice|one notice": "warning",
    r"greatest|fewest": "largest, smallest number of",
    r"(wants|speaks? against)": "requires, defaults to",
    r"beside|anew|in vain|spoil\w*|mend(s|ed)?|until then": "next to, again, wasted, corrupts, fixed",
    r"(?<!'s )(?<!rate )(?<!third )laws?(?!:)": "equation, candidate",
    r"obstacles?|certificate|glossary|verdicts?": "reasons, reports, diagnostics",
}
# Words that pages do not have; the package has them as names or in another meaning.
PAGE_WORDS = {
    r"ordinary (loop|way|call|step|launch\w*)": "the standard PyTorch loop, plain calls",
    r"(?<!/)rivals\b(?!\.py)": "baselines",
    r"drawn (call|sum|row)s?": "random, sampled",
    r"knows": "requires, defaults to",
    r"planes": "parts",
}
# Names that public modules, docstrings, messages and pages had before they became standard ones.
OLD_NAMES = (
    r"best_(?!\w)", r"\bcoef_std_?\b", r"\bexponents_std_?\b", r"\boutput_(powers|functions)\b",
    r"\bstandard_errors\b", r"(?<!\.)\b[Vv]erdicts?\b|result\.verdict", r"\bwhole_weights\b", r"\bUnitParallel\b",
    r"\bnon_finite\(", r"\bformula\.read\b", r"\bSeriesFit\b", r"\.wild\b", r"\bintervals\(",
    r"\bstarts=", r"\bdraws=", r"\bstretch=", r"\bfitting\.(Fit|Fits|Run)\b", r"\btraining\.Run\b",
    r"(?<!y_)\bunits=", r"noise=\"(constant|relative|factor)\"",
)  # fmt: skip
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
CODE = re.compile(r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)", re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_words_of_pages(page) -> None:
    text = CODE.sub(" ", page.read_text("utf-8"))
    words = WORDS | PAGE_WORDS
    matches = {word: re.search(rf"\b({word})\b", text, re.I) for word in words}
    assert {match.group(): words[word] for word, match in matches.items() if match} == {}


def texts_of_package() -> dict[str, str]:
    """Return the docstrings, messages and comments of the package by their places."""
    texts = dict[str, str]()
    for name, tree in modules("npu_kernels").items():
        strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
        texts |= {
            f"{name}: {node.lineno}: {node.col_offset}": node.value
            for node in strings
            if isinstance(node.value, str)
        }
    for path in sorted((ROOT / "npu_kernels").rglob("*.py")):
        for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
            if token.type == tokenize.COMMENT:
                texts[f"{path.relative_to(ROOT)}: {token.start[0]}"] = token.string
    return texts


def test_words_of_the_package() -> None:
    words = re.compile("|".join(rf"\b(?:{word})\b" for word in WORDS), re.I)
    matches = {
        (path, match.group())
        for path, text in texts_of_package().items()
        if (match := words.search(text))
    }
    assert sorted(matches) == []


def test_old_names() -> None:
    texts = {page.name: page.read_text("utf-8") for page in PAGES}
    texts |= {name: str(getattr(value, "__doc__", "")) for name, value in public_values().items()}
    texts |= texts_of_package()
    old = {
        (path, match.group())
        for path, text in texts.items()
        for name in OLD_NAMES
        if (match := re.search(name, text))
    }
    assert sorted(old) == []
