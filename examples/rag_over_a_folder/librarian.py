"""Answers questions about a folder of text, and says where each answer comes from.

    python -m examples.rag_over_a_folder handbook How many days of leave are there?
    python -m examples.rag_over_a_folder handbook --session marta And for trainees?
    python -m examples.rag_over_a_folder handbook                   # only indexes the folder

Before each question the index reads what is new or has changed. Each folder has an index and conversations of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from repertory import Agent, Message, Model, RepertoryError, SQLiteSessionManager, named_model, tool

from .folder_index import FolderIndex
from .offline import rules

SYSTEM_PROMPT = """You answer questions about a folder of documents. Search the folder before you answer, and search
again in other words when nothing fits. Use only what the passages say. Write the source of each statement behind it, in
the brackets in which the passage has it, such as [leave.md:12]. Say so when the folder has no answer."""
_SOURCE = re.compile(r"\[([^\[\]\n]+:\d+)\]")


@dataclass(frozen=True)
class Settings:
    """What the environment says."""

    model: str | None = None
    """`REPERTORY_MODEL`: `anthropic`, `openai:gpt-5.4`, `bedrock` or the id of a Bedrock model; else the rules."""
    data: Path = Path("~/.repertory/examples/rag_over_a_folder")
    """`RAG_DATA`: the folder of the indexes and the conversations."""
    passages: int = 4
    """`RAG_PASSAGES`: how many passages a search gives the model."""

    @staticmethod
    def read(environ: Mapping[str, str]) -> Settings:
        """The settings of an environment; what is not set has its default."""
        return Settings(
            model=environ.get("REPERTORY_MODEL"),
            data=Path(environ.get("RAG_DATA") or Settings.data).expanduser(),
            passages=int(environ.get("RAG_PASSAGES") or Settings.passages),
        )

    def build_model(self) -> Model:
        """The model that answers."""
        return named_model(self.model) if self.model else rules()

    def place_of(self, folder: Path) -> Path:
        """Where the index and the conversations of a folder are."""
        digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]
        return self.data / f"{folder.resolve().name}-{digest}"


@dataclass(frozen=True)
class Answer:
    """An answer, and the passages that it names."""

    text: str
    sources: tuple[str, ...]
    unknown: tuple[str, ...]
    """Sources that the answer names and that no search of the conversation has found: do not trust it."""


class Librarian:
    """An agent that searches one folder. Each session is a conversation of its own."""

    def __init__(self, index: FolderIndex, model: Model, sessions: Path, *, passages: int = 4) -> None:
        self._index, self._model, self._sessions, self._passages = index, model, sessions, passages

    async def ask(self, session: str, question: str) -> Answer:
        """The answer to a question, which the next process still knows. Errors: those of a turn."""

        @tool(effects=False)
        async def search_folder(question: str) -> str:
            """Search the folder. Returns the passages that fit best, each behind its source.

            Args:
                question: The question, or words that the passage has to contain.
            """
            found = await self._index.search(question, self._passages)
            return "\n\n".join(f"[{passage.source}]\n{passage.text}" for passage in found) or "Nothing was found."

        agent = Agent(
            self._model,
            tools=[search_folder],
            system_prompt=SYSTEM_PROMPT,
            session_manager=SQLiteSessionManager(session, path=self._sessions),
        )
        async with agent:
            text = str(await agent.invoke_async(question))
            found = set(_found_sources(agent.messages))
        named = tuple(dict.fromkeys(_SOURCE.findall(text)))
        return Answer(
            text,
            sources=tuple(source for source in named if source in found),
            unknown=tuple(source for source in named if source not in found),
        )


def _found_sources(messages: Iterable[Message]) -> Iterable[str]:
    """The sources in the results of all searches."""
    for message in messages:
        for block in message["content"]:
            if "toolResult" in block:
                for part in block["toolResult"]["content"]:
                    yield from _SOURCE.findall(str(part.get("text", "")))


async def run(settings: Settings, folder: Path, session: str, question: str) -> None:
    """Index a folder, and answer a question."""
    place = settings.place_of(folder)
    index = FolderIndex(folder, place / "index.db")
    try:
        print(f"indexed: {await index.refresh()}", file=sys.stderr)
        if not question:
            return
        librarian = Librarian(index, settings.build_model(), place / "sessions.db", passages=settings.passages)
        answer = await librarian.ask(session, question)
    finally:
        await index.aclose()
    print(answer.text)
    for source in answer.sources:
        print(f"  {folder}/{source}")
    for source in answer.unknown:
        print(f"  {source} was not found by any search: do not trust this answer", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 1 for an error."""
    parser = argparse.ArgumentParser(prog="librarian", description="Answer questions about a folder of text.")
    parser.add_argument("--session", default="main", help="the name of the conversation (default: main)")
    parser.add_argument("folder", type=Path, help="the folder, with .md, .rst and .txt files")
    parser.add_argument("question", nargs="*", help="without it, the folder is only indexed")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"there is no folder {options.folder}")
    try:
        anyio.run(run, Settings.read(os.environ), options.folder, options.session, " ".join(options.question))
    except (RepertoryError, ImportError, OSError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0
