"""An index of a folder of text, in a memory store. It reads new and changed files again, and forgets lost ones.

Each version of a file is one session of the store, `PATH@DIGEST`. Each passage is one turn of it, and its sequence
number is the line where it begins. So the store itself knows what is indexed, and nothing else has to agree with it.

A version is stored whole or not at all, and the one before is forgotten after that. A process that is killed between
the two has indexed the file twice, and the next one forgets the old version.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from repertory import AddMessagesContext, MemoryEntry, SearchOptions, SQLiteMemoryStore

ENDINGS = frozenset((".md", ".rst", ".txt"))
FILE_BYTES_MAX = 2_000_000
PASSAGE_CHARACTERS = 800


@dataclass(frozen=True)
class Passage:
    """Some lines of a file."""

    source: str
    """`PATH:LINE`, with the path inside the folder."""
    text: str


@dataclass(frozen=True)
class Refreshed:
    """What has changed in the folder since the last time, by path."""

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = {"new": self.new, "changed": self.changed, "gone": self.gone}
        return ", ".join(f"{what}: {' '.join(paths)}" for what, paths in told.items() if paths) or "nothing has changed"


class FolderIndex:
    """The passages of a folder, found by their words. With `embedder=`, the store finds them by their meaning too."""

    def __init__(self, folder: Path, database: Path) -> None:
        self._folder = folder
        self._store = SQLiteMemoryStore(database, name="passages")

    async def refresh(self) -> Refreshed:
        """Index what is new or has changed, and forget what is gone."""
        texts = await anyio.to_thread.run_sync(self._read)
        wanted = {f"{path}@{_digest(text)}": path for path, text in texts.items()}
        known = await self._versions()
        before = {version.rpartition("@")[0] for version in known}
        fresh: set[str] = set()
        for version in wanted.keys() - known:
            if passages := list(passages_of(texts[wanted[version]])):
                await self._add(version, passages)
                fresh.add(wanted[version])
        for version in known - wanted.keys():
            await self._store.forget(session_id=version)
        return Refreshed(
            new=tuple(sorted(fresh - before)),
            changed=tuple(sorted(fresh & before)),
            gone=tuple(sorted(before - texts.keys())),
        )

    async def _add(self, version: str, passages: Sequence[tuple[int, str]]) -> None:
        await self._store.add_messages(
            [{"role": "user", "content": [{"text": text}]} for _, text in passages],
            AddMessagesContext(
                session_id=version,
                sequence_numbers=[line for line, _ in passages],
                said_at=time.time(),  # so that a text that was forgotten before is taken again
            ),
        )

    async def search(self, question: str, passages_max: int = 4) -> list[Passage]:
        """The passages that fit a question best, best first."""
        found = await self._store.search(question, SearchOptions(max_search_results=passages_max))
        passages = [
            Passage(f"{_version(entry).rpartition('@')[0]}:{dict(entry.metadata or {})['seq']}", entry.content)
            for entry in found
        ]
        return list(dict.fromkeys(passages))  # two processes may have indexed a file at the same moment

    async def aclose(self) -> None:
        """Close the database."""
        await self._store.aclose()

    async def _versions(self) -> set[str]:
        """The versions of files that are indexed."""
        versions: set[str] = set()
        after: str | None = None
        while True:
            page = await self._store.entries(after=after, limit=1000)
            versions.update(map(_version, page.entries))
            if (after := page.next) is None:
                return versions

    def _read(self) -> Mapping[str, str]:
        """The texts of the folder by path. Hidden files, other endings and very large files are left out."""
        texts: dict[str, str] = {}
        for path in sorted(self._folder.rglob("*")):
            inside = path.relative_to(self._folder)
            hidden = any(part.startswith(".") for part in inside.parts)
            if hidden or path.suffix not in ENDINGS or not path.is_file() or path.stat().st_size > FILE_BYTES_MAX:
                continue
            texts[inside.as_posix()] = path.read_text(encoding="utf-8", errors="replace")
        return texts


def passages_of(text: str) -> Iterator[tuple[int, str]]:
    """The passages of a text with the line where each begins: a paragraph, or a part of a long one. A heading stands
    with what follows it.
    """
    begins, lines = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.strip():
            begins = begins or number
            lines.append(line.strip())
        ends = not line.strip() and lines and not lines[-1].startswith("#")
        if ends or sum(map(len, lines)) >= PASSAGE_CHARACTERS:
            yield begins, "\n".join(lines)
            begins, lines = 0, []
    if lines:
        yield begins, "\n".join(lines)


def _version(entry: MemoryEntry) -> str:
    return str(dict(entry.metadata or {})["session_id"])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
