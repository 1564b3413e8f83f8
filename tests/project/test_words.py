"""Words that pages, public names, docstrings and messages do not have: the field has standard ones."""

import ast
import re

import pytest

from tests.project.test_structure import modules, public_values
from tests.support.examples import ROOT

# A word that is not written, and what is written instead.
WORDS = {
    r"told apart|tell(s|ing)? .{0,20} apart": "distinguishable",
    r"same bits|to the bit": "bitwise identical",
    r"whole (number|exponent)s?": "integers",
    r"wild (row|value)s?": "outliers",
    r"ordinary (loop|way|call|step|launch\w*)": "the standard PyTorch loop, plain calls",
    r"by the eager formulas?": "with the eager implementation",
    r"without a notice|one notice": "warning",
    r"(?<!/)rivals\b(?!\.py)": "baselines",
    r"drawn (call|sum|row)s?": "random, sampled",
    r"greatest|fewest": "largest, smallest number of",
    r"(knows|wants|speaks? against)\b": "requires, defaults to",
    r"beside|anew|in vain|spoil\w*|mended|until then": "next to, again, wasted, corrupts, fixed",
    r"planes|obstacles?|certificate|glossary": "parts, reasons, reports",
}
# Names that public modules, docstrings, messages and pages had before they became standard ones.
OLD_NAMES = (
    r"best_(?!\w)", r"\bcoef_std_?\b", r"\bexponents_std_?\b", r"\boutput_(powers|functions)\b",
    r"\bstandard_errors\b", r"(?<!\.)\b[Vv]erdicts?\b|result\.verdict", r"\bwhole_weights\b", r"\bUnitParallel\b",
    r"\bnon_finite\(", r"\bformula\.read\b", r"\bSeriesFit\b", r"\.wild\b", r"\bintervals\(",
    r"\bstarts=", r"\bdraws=", r"\bstretch=", r"\bfitting\.(Fit|Fits|Run)\b", r"\btraining\.Run\b",
    r"(?<!y_)\bunits=", r"noise=\"(constant|relative|factor)\"",
)  # fmt: skip
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)", re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_words_of_pages(page) -> None:
    text = CODE.sub(" ", page.read_text("utf-8"))
    matches = {word: re.search(rf"\b({word})", text, re.I) for word in WORDS}
    assert {match.group(): WORDS[word] for word, match in matches.items() if match} == {}


def test_old_names() -> None:
    texts = {page.name: page.read_text("utf-8") for page in PAGES}
    texts |= {name: str(getattr(value, "__doc__", "")) for name, value in public_values().items()}
    texts |= {
        f"{name}: {node.lineno}": node.value
        for name, tree in modules("npu_kernels").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    old = {
        (place, match.group())
        for place, text in texts.items()
        for name in OLD_NAMES
        if (match := re.search(name, text))
    }
    assert sorted(old) == []
