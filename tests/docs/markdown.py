"""Reads the fenced blocks and the links of the project's documents.

A comment on the line before a fence says what a block is:

- `<!-- not executed: REASON -->`: only shown, since it needs what a test has not;
- `<!-- continues -->`: goes on from the program before it, names and all;
- `<!-- prints -->`: what the program before it prints;
- `<!-- file: NAME -->`: a file that the console blocks of the page find in their folder;
- `<!-- tree -->`: a drawing of folders;
- `<!-- turn -->`: a drawing of the phases of a turn.

A comment that belongs to no fence, before a paragraph:

- `<!-- files of: PAGE -->`: the console blocks also find the files of another page, and of the pages that it names, as
  that page left them. Nothing is run of it.

Without one, a `python` block is a program of its own, and a `console` block is what somebody types and sees: commands
behind `$ `, their continuation lines behind `> `, and their output.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.source_tree import ROOT

_FENCE = re.compile(
    r"(?:^<!-- (?P<mark>[a-z ]+)(?:: (?P<note>[^\n]+))? -->\n+)?^```(?P<language>[a-z]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_FILES_OF = re.compile(r"^<!-- files of: (?P<page>[^\n]+) -->$", re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?://|mailto:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]*))?\)")


@dataclass(frozen=True)
class Block:
    """One fenced block of a document."""

    document: Path
    line: int
    """The line of its first line of text, from 1."""
    language: str
    mark: str
    note: str
    """What the mark says behind its colon: a reason, or the name of a file."""
    text: str

    @property
    def place(self) -> str:
        """Where it stands, in the form that terminals turn into a link."""
        return f"{self.document.relative_to(ROOT).as_posix()}:{self.line}"


@dataclass(frozen=True)
class Example:
    """A program in a document: one block, and those that continue it."""

    blocks: tuple[Block, ...]
    prints: str | None

    @property
    def place(self) -> str:
        """Where it begins."""
        return self.blocks[0].place

    @property
    def source(self) -> str:
        """The program, each line on the line number that it has in the document."""
        lines: list[str] = []
        for block in self.blocks:
            lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
        return "\n".join(lines) + "\n"


def documents() -> list[Path]:
    """Every document that we publish."""
    return [
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
    ]


def blocks(document: Path) -> list[Block]:
    """The fenced blocks of one document, in order."""
    text = document.read_text(encoding="utf-8")
    return [
        Block(
            document=document,
            line=text.count("\n", 0, match.start("text")) + 1,
            language=match["language"],
            mark=match["mark"] or "",
            note=match["note"] or "",
            text=match["text"],
        )
        for match in _FENCE.finditer(text)
    ]


def files_before(document: Path) -> dict[str, str]:
    """The files that a document takes from other pages, by name: what the last of these pages says of each."""
    found: dict[str, str] = {}
    for match in _FILES_OF.finditer(document.read_text(encoding="utf-8")):
        page = document.parent / match["page"]
        found |= files_before(page)
        found |= {block.note: block.text for block in blocks(page) if block.mark == "file"}
    return found


def examples(document: Path) -> list[Example]:
    """The programs of one document, in order. Design notes sketch, so they have none."""
    if document.parent == ROOT / "docs/design":
        return []
    found: list[Example] = []
    for block in blocks(document):
        if block.mark == "prints":
            found[-1] = Example(found[-1].blocks, prints=block.text)
        elif block.language == "python" and block.mark == "continues":
            found[-1] = Example((*found[-1].blocks, block), prints=None)
        elif block.language == "python" and block.mark not in {"not executed", "file"}:
            found.append(Example((block,), prints=None))
    return found


def prose(document: Path) -> str:
    """The text of a document without its blocks and comments."""
    return re.sub(r"<!--.*?-->", "", _FENCE.sub("", document.read_text(encoding="utf-8")), flags=re.DOTALL)


def links(document: Path) -> list[tuple[str, str]]:
    """The links of a document into the project: (path as written, anchor). Code is not searched."""
    prose = _FENCE.sub("", document.read_text(encoding="utf-8"))
    return [(match["path"], match["anchor"] or "") for match in _LINK.finditer(prose)]


def anchors(document: Path) -> set[str]:
    """The anchors that a reader can link to: one per heading, spelled as the usual renderers spell it.

    An entry of the reference, `::: NAME`, has its name as its anchor.
    """
    prose = _FENCE.sub("", document.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    entries = re.findall(r"^::: (\S+)$", prose, re.MULTILINE)
    return set(entries) | {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
