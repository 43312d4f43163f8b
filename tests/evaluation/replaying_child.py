"""Replays a session and kills itself: `python -m tests.evaluation.replaying_child FOLDER MODE`.

Every model call appends its prompt to `calls.txt`, synced, before it answers. MODE is `ANSWER N`: die in the middle of
the turn of prompt N, after its tool was answered; `ROW N`: die after row N; or `END`: replay to the end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio

from repertory import Evaluation, ReplayProgress, ScoredAnswer, ScriptedModel, SQLiteSessions, Variant, replay
from repertory.core.messages import Message, texts_in, tool_results

PROMPTS = ("one", "two", "three", "four")


def note(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")
        file.flush()
        os.fsync(file.fileno())


def answering(folder: Path, dies_at: str | None) -> ScriptedModel:
    """Asks its tool, then answers with the prompt in capitals."""

    def reply(messages: Sequence[Message], tools: object, system_prompt: object) -> Any:
        last = messages[-1]
        again = any(tool_results(last))
        prompt = next(text for message in reversed(messages) if message["role"] == "user" for text in texts_in(message))
        note(folder / "calls.txt", f"{prompt} {'answer' if again else 'tool'}")
        if again and prompt == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if again:
            return prompt.upper()
        return {"toolUse": {"name": "look", "input": {"at": prompt}}}

    return ScriptedModel([reply], loop=True)


def length(answer: ScoredAnswer) -> int:
    return len(answer.replayed.text)


async def run(folder: Path, dies_at: str | None = None, rows_max: int | None = None) -> Evaluation:
    def shown(progress: ReplayProgress) -> None:
        if progress.done == rows_max:
            os.kill(os.getpid(), signal.SIGKILL)

    return await replay(
        SQLiteSessions(folder / "shop.db"),
        "marta",
        variant=Variant(name="loud", model=answering(folder, dies_at)),
        scorers=[length],
        concurrency=1,
        out=folder / "results.jsonl",
        on_progress=shown,
    )


if __name__ == "__main__":
    where, mode, *rest = sys.argv[1:]
    if mode == "ANSWER":
        anyio.run(run, Path(where), rest[0])
    elif mode == "ROW":
        anyio.run(run, Path(where), None, int(rest[0]))
    else:
        anyio.run(run, Path(where))
