"""Old answers, sent again and again, while a model gives every use of a tool the same id.

A conversation asks a person by policies and hooks. It slides out of its window, goes back, forks, is deleted and begun
anew, and its process begins again. No question may have the id of another one, an old answer may allow nothing, and an
open question keeps its id. Clients of every protocol send what they have sent again, to later processes: that runs
nothing and pays nothing.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any, get_args

import anyio

from repertory import (
    AgentSpec,
    BeforeToolsEvent,
    HookRegistry,
    HumanInTheLoop,
    Runtime,
    ScriptedModel,
    Sessions,
    SlidingWindowConversationManager,
    SQLiteSessions,
    tool,
)
from repertory.errors import InterruptNotFound, RepertoryError
from tests.campaigns.campaigns import Report
from tests.service.answering_clients import Bank, Client, Door, pays

PAYS: Any = [{"toolUse": {"toolUseId": "call_0", "name": "pay", "input": {"amount": 1}}}]


def answering(ids: list[str], answer: str = "y") -> Any:
    return [{"interruptResponse": {"interruptId": each, "response": answer}} for each in ids]


def reply(messages: Any, *_: Any) -> Any:
    return PAYS if messages[-1]["content"][-1].get("text") == "pay" else "well"


class AsksBeforeTools:
    def register_hooks(self, registry: HookRegistry) -> None:
        registry.add_callback(BeforeToolsEvent, self._ask)

    def _ask(self, event: BeforeToolsEvent) -> None:
        if event.interrupt("these?") != "y":
            event.cancel = "not these"


class Walk:
    """One database of conversations, and everything that a person was ever asked there."""

    def __init__(self, rng: random.Random, folder: Path, report: Report) -> None:
        self.rng, self.report = rng, report
        self.place = SQLiteSessions(folder / f"{rng.random()}.db")
        self.open: dict[str, list[str]] = {"s": []}
        """By session, the questions that wait."""
        self.given: dict[str, list[str]] = {}
        """By session, answers of the turn that waits."""
        self.asked: set[str] = set()
        self.old: list[str] = []
        self.paid = 0

    async def process(self) -> None:
        """One life of a process."""

        @tool
        def pay(amount: int) -> str:
            """Pay."""
            self.paid += 1
            return "paid"

        spec = AgentSpec(
            name="a",
            model=ScriptedModel([reply], loop=True),
            tools=[pay],
            interventions=[HumanInTheLoop()],
            hooks=[AsksBeforeTools()],
            conversation_manager=SlidingWindowConversationManager(window_size=self.rng.choice((2, 40))),
        )
        async with Runtime(sessions=self.place) as runtime:
            agent = runtime.agent(spec)
            for _ in range(self.rng.randint(1, 6)):
                name = self.rng.choice([*self.open])
                await self._call(agent.session(name), name)

    async def _call(self, session: Any, name: str) -> None:
        before = self.paid
        waiting = [one.id for one in await session.interrupts()]
        if self.open[name]:
            self.report.check(waiting == self.open[name], "an open question has another id after a restart")
        else:  # A fork has the questions of its source, as questions of its own.
            self._are_new(waiting)
        self.open[name] = waiting
        for each in self.rng.sample(self.old, min(len(self.old), 3)):
            try:
                await session.invoke(answering([each]))
                self.report.faults.append(f"an old answer was taken: {each}")
            except InterruptNotFound:
                self.report.counts["old answers refused"] += 1
        self.report.check(self.paid == before, "an old answer paid")
        if not waiting:
            self._note(name, await session.invoke(self.rng.choice(("pay", "pay", "hello"))))
            return
        self.report.acknowledged += 1
        result = await session.invoke(answering(waiting))
        self.report.found += 1
        self.given[name] = [*self.given.get(name, []), *waiting]
        self._note(name, result)
        if not self.open[name]:  # Until then the same answer may come twice, and counts once.
            self._forget(name)

    def _note(self, name: str, result: Any) -> None:
        self.open[name] = [one.id for one in result.interrupts] if result.stop_reason == "interrupt" else []
        self._are_new(self.open[name])

    def _are_new(self, ids: list[str]) -> None:
        self.report.check(not self.asked & set(ids), f"asked before: {self.asked & set(ids)}")
        self.asked |= set(ids)

    async def between(self) -> None:
        """What is done with stored sessions while no process has them."""
        name, sessions = self.rng.choice([*self.open]), Sessions(self.place)
        async with sessions:
            end = max((last for info in await sessions.list() for last in info.agents.values()), default=1)
            match self.rng.choice(("rewind", "fork", "delete", "nothing")):
                case "rewind":
                    await sessions.rewind(name, self.rng.randint(1, end))
                    self._forget(name)
                case "fork" if len(self.open) < 4:
                    await sessions.fork(name, f"s{len(self.open)}")
                    self.open[f"s{len(self.open)}"] = []
                case "delete":
                    await sessions.delete(name)
                    self._forget(name)
                case _:
                    pass

    def _forget(self, name: str) -> None:
        self.old += [*self.open[name], *self.given.pop(name, [])]
        self.open[name] = []


async def at_a_door(rng: random.Random, folder: Path, report: Report) -> None:
    """A conversation over one protocol, whose client sends anything again that it has sent."""

    def reply(messages: Any, *_: Any) -> Any:
        asked = messages[-1]["content"][-1].get("text") == "pay"
        return pays(rng.choice((1, 1_000_000))) if asked or rng.random() < 0.3 else "well"

    bank, client, sent = (
        Bank(folder, *[reply] * 99, name=f"{rng.random()}"),
        Client(rng.choice(get_args(Door))),
        list[str](),
    )
    for _ in range(4):
        runtime, client.app = bank.process()
        async with runtime:
            for _ in range(4):
                waits = bool(await runtime.agents["helper"].session("s").interrupts()) if sent else False
                sent.append(f"n{len(sent)}")
                await client.say("yes" if waits else rng.choice(("pay", "hello")), sent[-1])
                done = [*bank.paid], len(bank.model.calls)
                for name in rng.sample(sent, min(len(sent), 3)):
                    answer = await client.say("", name, again=True)
                    report.check(answer.status_code == 200, f"refused when it is sent again: {answer.text[:200]}")
                    report.check(done == (bank.paid, len(bank.model.calls)), f"{name} was run again")
                    report.counts["requests sent again"] += 1


def old_answers(rng: random.Random, folder: Path, seconds: float) -> Report:
    """Walks of a few processes each, until the time is over."""
    report, end = Report(), time.monotonic() + seconds

    async def walk() -> None:
        while not report.acknowledged or (time.monotonic() < end and not report.faults):
            one = Walk(rng, folder, report)
            for _ in range(8):
                await one.process()
                try:
                    await one.between()
                except RepertoryError:  # Tools are under way at that position, or there is no such session.
                    report.counts["not done"] += 1
            await at_a_door(rng, folder, report)

    anyio.run(walk, backend=rng.choice(("asyncio", "trio")))
    return report
