"""Callers who share a conversation, and steer, interrupt, repeat and cancel each other's turns.

There is one of the same name in another place, and a model gives every use of a tool the same ids. Each payment is made
once, for who asked for it, under a key that no other one has. The model sees no words that a guard denies.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

from repertory import (
    AgentSpec,
    BeforeInvocationEvent,
    Deny,
    InterventionHandler,
    NullConversationManager,
    Proceed,
    Runtime,
    ScriptedModel,
    SQLiteSessions,
    ToolContext,
    tool,
)
from repertory.errors import RepertoryError
from tests.campaigns.campaigns import Report

CALLS = 12


class NoAttacks(InterventionHandler):
    """Denies what the model must not see."""

    name = "no-attacks"

    def before_invocation(self, event: BeforeInvocationEvent, **kwargs: Any) -> Any:
        return Deny(reason="no") if "attack" in str(event.messages) else Proceed()


class Round:
    """Two places with a conversation of the same name, and everything that was paid there."""

    def __init__(self, rng: random.Random, folder: Path, report: Report) -> None:
        self.rng, self.folder, self.report = rng, folder, report
        self.paid: list[tuple[str, str, str]] = []
        """Each payment, who it was for, and its key."""
        self.seen: list[str] = []
        self.words: list[str] = []
        self.guarded = rng.random() < 0.3

    def spec(self, *, guarded: bool) -> AgentSpec:
        @tool(idempotent=True)
        async def pay(what: str, tool_context: ToolContext) -> str:
            """Pay."""
            await anyio.sleep(self.rng.random() / 50)
            self.paid.append((what, tool_context.invocation_state["user"], tool_context.idempotency_key))
            return "paid"

        def reply(messages: Any, *_: Any) -> Any:
            texts = [block["text"] for block in messages[-1]["content"] if "text" in block]
            self.seen.extend(texts)
            wanted = [text for text in texts if text.startswith("pay ")]
            uses = [{"name": "pay", "input": {"what": text}, "toolUseId": f"call_{n}"} for n, text in enumerate(wanted)]
            return [{"toolUse": each} for each in uses] or "done"

        model = ScriptedModel([reply], loop=True, delay_s=0.005)
        whole = NullConversationManager()  # Behind a window, the model would not see that it has paid.
        guards = [NoAttacks()] if guarded else []
        return AgentSpec(name="a", model=model, tools=[pay], interventions=guards, conversation_manager=whole)

    async def call(self, session: Any, words: str, user: str) -> None:
        """Say it, and again under the same token, until it has an answer."""
        result: Any = None
        while result is None or result.stop_reason != "end_turn":
            await anyio.sleep(self.rng.random() / 30)
            busy: Any = self.rng.choice(["queue", "steer", "steer", "interrupt"])
            with suppress(RepertoryError):
                result = await session.invoke(
                    words, idempotency_token=words.replace(" ", "-"), busy=busy, invocation_state={"user": user}
                )
            self.report.counts[busy] += 1

    async def in_place(self, place: str) -> None:
        """Everybody talks at once, and somebody cancels. What has its answer is then not done again."""
        async with Runtime(sessions=SQLiteSessions(self.folder / f"{place}-{self.rng.random()}.db")) as runtime:
            session = runtime.agent(self.spec(guarded=self.guarded)).session("s")
            said = [(self.rng.choice(["pay", "pay", "attack"]), number) for number in range(CALLS)]
            async with anyio.create_task_group() as group:
                for kind, number in said:
                    user = self.rng.choice(["ann", "bob"])
                    group.start_soon(self.call, session, f"{kind} {place}{number} for {user}", user)
                    self.words.append(f"{kind} {place}{number} for {user}")
                for _ in range(3):
                    await anyio.sleep(self.rng.random() / 10)
                    await session.cancel()
            for words in [words for words in self.words if f" {place}" in words]:
                if not (self.guarded and words.startswith("attack")):
                    self.report.acknowledged += 1
                    again = await session.invoke(words, idempotency_token=words.replace(" ", "-"))
                    self.report.found += again.replayed

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            for place in ("one", "two"):
                group.start_soon(self.in_place, place)
        keys = {what: {key for paid, _, key in self.paid if paid == what} for what, _, _ in self.paid}
        wrong = [(what, user) for what, user, _ in self.paid if what.rpartition(" ")[2] != user]
        self.report.check(not wrong, f"paid for somebody else: {wrong}")
        self.report.check(all(len(each) == 1 for each in keys.values()), f"paid under several keys: {keys}")
        self.report.check(len(set().union(*keys.values())) == len(keys), f"two payments have one key: {keys}")
        self.report.check(not (self.guarded and "attack" in str(self.seen)), "the model saw what a guard denies")


def steering(rng: random.Random, folder: Path, seconds: float) -> Report:
    """The campaign `steering`."""
    report, end = Report(), time.monotonic() + seconds
    while not report.acknowledged or time.monotonic() < end:
        anyio.run(Round(rng, folder, report).run, backend=rng.choice(["asyncio", "trio"]))
    return report
