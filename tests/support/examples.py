"""The examples of the documentation: Python blocks of pages, `>>>` examples of docstrings."""

import ast
import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.M | re.S)
# What a page says where its blocks belong together, and a block that needs those above it.
SESSION = "The examples on this page continue one another."
CONTINUES = "# continues the block above\n"


@dataclass(frozen=True)
class Example:
    """One block, with the code that it continues; `said` is the text block after it."""

    name: str
    kind: str
    code: str
    said: str | None


def pages() -> list[Path]:
    """All Markdown pages that people wrote or generators made, but for results."""
    documents = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
    ]
    return sorted(page for page in documents if "_build" not in page.parts)


def of_page(page: Path) -> list[Example]:
    """A page's examples, each with all code that it needs."""
    text, blocks, before = page.read_text(encoding="utf-8"), [], ""
    session = SESSION in text
    for match in BLOCK.finditer(text):
        kind, code, said = match.groups()
        name = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
        before = before + "\n" + code if session or code.startswith(CONTINUES) else code
        blocks.append(Example(name, kind, before, said))
    return blocks[-1:] if session else blocks  # the last one of a session is all of it


def docstrings(source: Path) -> Iterator[tuple[str, str]]:
    """(name, docstring) of a module and all that is in it."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            text = ast.get_docstring(node)
            if text:
                where = source.relative_to(ROOT)
                yield f"{where}:{getattr(node, 'name', 'module')}", text


def of_docstrings() -> list[Example]:
    """The docstrings with examples."""
    sources = sorted((ROOT / "npu_kernels").rglob("*.py"))
    texts = [pair for source in sources for pair in docstrings(source)]
    return [Example(name, "pycon", text, None) for name, text in texts if ">>>" in text]


def unmarked_code(text: str) -> list[str]:
    """Indented blocks of a docstring that are Python without being an example that runs."""
    blocks, block = [], []
    for line in [*text.splitlines(), "end"]:
        if line.startswith("    ") or (block and not line):
            block.append(line[4:])
            continue
        code, block = "\n".join(block).strip("\n"), []
        if code and ">>>" not in code:
            with contextlib.suppress(SyntaxError):  # a formula or a table
                ast.parse(code)
                blocks.append(code)
    return blocks
