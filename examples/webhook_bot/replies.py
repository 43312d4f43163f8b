"""Where answers go: to Slack, or to a file without an account. A note on disk says which event has its answer.

The note is written after the answer was sent. A process that is killed between the two sends that answer again, with
the same event in its metadata; everything else happens once.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Protocol

import anyio.to_thread
import httpx

from repertory.errors import Throttled, Unavailable


class Replies(Protocol):
    """Sends an answer. What it raises has the worker try again later."""

    async def send(self, event: str, channel: str, thread: str, text: str) -> None: ...


class ReplyFile:
    """Answers as lines of a file, for trials."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def send(self, event: str, channel: str, thread: str, text: str) -> None:
        async with await anyio.open_file(self._path, "a", encoding="utf-8") as file:
            await file.write(json.dumps({"event": event, "channel": channel, "text": text}) + "\n")


class SlackReplies:
    """Answers in the thread of the message."""

    def __init__(self, url: str, token: str) -> None:
        self._client = httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=20)

    async def send(self, event: str, channel: str, thread: str, text: str) -> None:
        metadata = {"event_type": "webhook_bot_reply", "event_payload": {"event": event}}
        body = {"channel": channel, "thread_ts": thread, "text": text, "metadata": metadata}
        try:
            answer = await self._client.post("/api/chat.postMessage", json=body)
        except httpx.HTTPError as error:
            raise Unavailable("Slack cannot be reached", cause=str(error)) from error
        if answer.status_code == 429:
            raise Throttled("Slack asks to wait", retry_after_s=float(answer.headers.get("Retry-After", 1)))
        if answer.status_code != 200 or not answer.json().get("ok"):
            raise Unavailable("Slack has refused a message", status=answer.status_code, said=answer.text[:200])


class OnceReplies:
    """Sends the answer to each event once."""

    def __init__(self, replies: Replies, notes: Path) -> None:
        self._replies = replies
        self._notes = notes
        os.makedirs(notes.parent, exist_ok=True)
        with closing(sqlite3.connect(notes)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS answered (event TEXT PRIMARY KEY) WITHOUT ROWID")

    async def send(self, event: str, channel: str, thread: str, text: str) -> None:
        if await anyio.to_thread.run_sync(self._is_answered, event):
            return
        await self._replies.send(event, channel, thread, text)
        await anyio.to_thread.run_sync(self._note, event)

    def _is_answered(self, event: str) -> bool:
        with closing(sqlite3.connect(self._notes)) as database:
            return database.execute("SELECT 1 FROM answered WHERE event = ?", (event,)).fetchone() is not None

    def _note(self, event: str) -> None:
        with closing(sqlite3.connect(self._notes)) as database, database:
            database.execute("INSERT OR IGNORE INTO answered VALUES (?)", (event,))
