"""Trees of documents in a folder or a bucket that other programs change at random while nobody has the session.

After each change the session opens; what the documents say is what the conversation has; opening it once more changes
nothing; a turn can be added; and a tree that is lost with the machine is written again from the journal as it was.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repertory import Agent, FileSessionManager, FileSessions, NullConversationManager, ScriptedModel, Sessions, tool
from repertory.backends.sessions.documents import folder_trees
from repertory.core.journal.rows import Row
from repertory.core.messages import text_of
from tests.app.sessions.bucket_in_folder import BucketInFolder, SessionInFolder

AGENT = "session_s/agents/agent_default"


@tool
def look(what: str) -> str:
    """Look something up."""
    return f"found {what}"


class ChangedTree:
    """One session in a folder, or in a bucket whose objects are files there, and what becomes of it."""

    def __init__(self, seed: int, folder: Path, *, bucket: bool = False) -> None:
        self.rng = random.Random(seed)
        self.bucket = bucket
        self.folder = folder
        self.changes: list[str] = []
        self._texts: Iterator[str] = (f"text {seed} {number}" for number in range(10_000))

    async def run(self, rounds: int = 4) -> None:
        for _ in range(rounds):
            await self._talk()
            for _ in range(self.rng.randint(1, 3)):
                change = self.rng.choice(
                    [self._add, self._edit, self._remove, self._cut, self._break, self._state, self._copy, self._forget]
                )
                self.changes.append(change.__name__)
                change()
            await self._check()
        if not self.bucket:  # What is lost there is removed by somebody.
            await self._rebuild()

    def _agent(self, *replies: Any) -> Agent:
        return Agent(
            ScriptedModel(list(replies)),
            tools=[look],
            callback_handler=None,
            session_manager=self._manager(),
            conversation_manager=NullConversationManager(),
        )

    def _manager(self) -> Any:
        return SessionInFolder("s", self.folder) if self.bucket else FileSessionManager("s", self.folder)

    def _sessions(self) -> Any:
        return BucketInFolder(self.folder) if self.bucket else FileSessions(self.folder)

    async def _rows(self) -> list[Row]:
        """The whole journal."""
        store = self._sessions().open_store()
        rows = list(await store.load("s", "default", whole=True))
        await store.aclose()
        return rows

    async def _talk(self) -> None:
        use = {"toolUse": {"name": "look", "input": {"what": "it"}}}
        for _ in range(self.rng.randint(1, 3)):
            replies = [next(self._texts)] if self.rng.random() < 0.6 else [use, next(self._texts)]
            answer = await self._agent(*replies).invoke_async(next(self._texts))
            assert str(answer).strip() == replies[-1]

    async def _shown(self) -> list[str]:
        async with self._agent() as it:
            await it.ready()
            return [text_of(message) for message in it.messages]

    async def _check(self) -> None:
        first = await self._shown()
        before = await self._rows()
        assert await self._shown() == first
        assert await self._rows() == before, "opening again has taken something in again"
        said = [text for number in self._numbers() if (text := self._said(number)) is not None]
        missing = [text for text in said if text.startswith("by others") and text not in first]
        assert not missing, (missing, first)
        report = await Sessions(self._sessions()).doctor()
        assert all("message_" in problem for health in report.sessions for problem in health.problems), report

    async def _rebuild(self) -> None:
        """The machine crashes, and all documents are lost with it."""
        self._numbers()
        for number in self._numbers():
            if self._said(number) is None:
                self._path(number).unlink()
        await self._shown()
        before = await self._shown()
        said = [self._said(number) for number in self._numbers()]
        shutil.rmtree(self.folder / "session_s/agents")
        boot, folder_trees.boot = folder_trees.boot, lambda: "another run"
        try:
            assert await self._shown() == before
            again = [self._said(number) for number in self._numbers()]
        finally:
            folder_trees.boot = boot
        assert [text for text in again if text in before] == [text for text in said if text in before]

    # What others do.

    def _path(self, number: int) -> Path:
        return self.folder / AGENT / "messages" / f"message_{number}.json"

    def _numbers(self) -> list[int]:
        names = [path.stem for path in (self.folder / AGENT / "messages").glob("message_*.json")]
        return sorted(int(name.removeprefix("message_")) for name in names)

    def _said(self, number: int) -> str | None:
        try:
            document = json.loads(self._path(number).read_bytes())
            return text_of(document["redact_message"] or document["message"])
        except (ValueError, KeyError, TypeError):
            return None

    def _write(self, number: int, document: dict[str, Any]) -> None:
        new = self._path(number).with_suffix(".new")
        new.write_text(json.dumps(document))
        new.rename(self._path(number))

    def _add(self) -> None:
        number = max(self._numbers(), default=-1) + 1
        role, when = self.rng.choice(["user", "assistant"]), "2026-11-21T06:03:59+00:00"
        message = {"role": role, "content": [{"text": f"by others {next(self._texts)}"}]}
        self._write(number, {"message": message, "message_id": number, "redact_message": None, "created_at": when})

    def _some(self) -> int | None:
        numbers = [number for number in self._numbers() if self._said(number)]
        return self.rng.choice(numbers) if numbers else None

    def _edit(self) -> None:
        number = self._some()
        if number is not None:
            document = json.loads(self._path(number).read_bytes())
            message = document["redact_message"] or document["message"]
            message["content"] = [{"text": f"by others {next(self._texts)}"}]
            self._write(number, {**document, "message": message, "redact_message": None})

    def _remove(self) -> None:
        number = self._some()
        if number is not None:
            self._path(number).unlink()

    def _cut(self) -> None:
        for number in self._numbers()[-self.rng.randint(1, 4) :]:
            self._path(number).unlink()

    def _break(self) -> None:
        number = self._some()
        if number is not None:
            new = self._path(number).with_suffix(".new")
            new.write_bytes(self.rng.choice([b"", b"{", b"[]", bytes(20)]))
            new.rename(self._path(number))

    def _state(self) -> None:
        path = self.folder / AGENT / "agent.json"
        new = path.with_suffix(".new")
        new.write_text(json.dumps({**json.loads(path.read_bytes()), "state": {"n": self.rng.random()}}))
        new.rename(path)

    def _copy(self) -> None:
        shutil.copytree(self.folder, self.folder.with_suffix(".copy"))
        shutil.rmtree(self.folder)
        self.folder.with_suffix(".copy").rename(self.folder)

    def _forget(self) -> None:
        shutil.rmtree(self.folder / "session_s/repertory/tree", ignore_errors=True)
