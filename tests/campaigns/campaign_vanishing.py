"""Clients that vanish: in the middle of a stream, at any await, after a few seconds, and come back under their tokens.

One session, a few tokens, each with a prompt of its own, and clients that call with it, call without it, attach, post,
cancel and leave, in virtual time. Each token gets the answer to its own prompt or a typed error, a tool runs once, for
the token whose prompt wants it, and nobody waits for ever.
"""

from __future__ import annotations

import random
import re
import signal
import threading
import types
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from repertory import Agent, AgentResult, AgentSpec, NullConversationManager, Runtime, ScriptedModel, tool
from repertory.app.embedding.hosted import HostedSession
from repertory.backends.ports import ToolContext
from repertory.cluster.peers import Peers
from repertory.core.messages import Message
from repertory.errors import RepertoryError
from repertory.runtime.testing.virtual_time import virtual_asyncio, virtual_trio
from tests.campaigns.campaigns import Report
from tests.cluster.loopback_wire import LoopbackNetwork
from tests.cluster.test_peers import WakingShelf

TOKENS = tuple(f"t{number}" for number in range(5))
CLIENTS, LONG_S = 24, 30.0
FOR_EVER_S = 50_000.0
"""Virtual seconds after which whoever still waits would wait for ever."""
_WANTED = re.compile(r"do (\w+)")
_EARLIER = re.compile(
    r"\((?:Go on with|Answer) .*?(?:the one (?:(\d+) )?before my last one|my last message|your last answer)"
)


def vanishing(rng: random.Random, vanishes: bool, call: Callable[[], Coroutine[Any, Any, Any]]) -> Awaitable[Any]:
    """The result of the call, of which its client may have enough after a while, or at any of its awaits."""

    async def after_a_while() -> Any:
        with anyio.move_on_after(rng.uniform(0, LONG_S)):
            return await call()
        return None

    async def at_an_await() -> Any:
        with anyio.CancelScope() as scope:
            return await _cut_at(rng.randrange(1, 40), scope, call())
        return None

    if not vanishes:
        return call()
    return after_a_while() if rng.random() < 0.5 else at_an_await()


@types.coroutine
def _cut_at(number: int, scope: anyio.CancelScope, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Do the work, whose client vanishes at its await of that number."""
    step: Callable[[], Any] = partial(work.send, None)
    while True:
        try:
            waits_for = step()
        except StopIteration as done:
            return done.value
        number -= 1
        if number == 0:
            scope.cancel()
        try:
            step = partial(work.send, (yield waits_for))
        except BaseException as error:  # noqa: BLE001 - what is thrown in here is for the work
            step = partial(work.throw, error)


def asked_for(messages: Sequence[Message]) -> str:
    """Whose prompt the model is to answer now: that of the last user, or the one that a note refers to."""
    said = [
        " ".join(str(block["text"]) for block in message["content"] if "text" in block)
        for message in messages
        if message["role"] == "user" and any("toolResult" not in block for block in message["content"])
    ]
    at = len(said) - 1
    while (note := _EARLIER.search(said[at])) is not None and _WANTED.search(said[at]) is None:
        at -= 1 + (int(note[1] or 1) if "before my last one" in note[0] else 0)
    wanted = _WANTED.search(said[at])
    return wanted[1] if wanted is not None else "nobody"


class Slow(ScriptedModel):
    """Takes its time before each piece of an answer."""

    def __init__(self, rng: random.Random, reply: Callable[..., Any], long_s: float) -> None:
        super().__init__([reply], loop=True, chunk=8)
        self._rng = rng
        self._long_s = long_s

    async def stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        pieces: Any = super().stream(*args, **options)
        async with aclosing(pieces) as events:
            async for event in events:
                await anyio.sleep(self._rng.uniform(0, self._long_s / 10))
                yield event


class House:
    """One session, what its tool has done, and what clients were told."""

    def __init__(self, rng: random.Random, report: Report, long_s: float = LONG_S) -> None:
        self.rng = rng
        self.report = report
        self.paid: Counter[str] = Counter()

        @tool
        async def pay(who: str, tool_context: ToolContext) -> str:
            """Pay somebody."""
            self.paid[who] += 1
            meant = tool_context.invocation_state.get("token", who)
            report.check(meant == who, f"the tool of {who} ran under the token {meant}")
            await anyio.sleep(rng.uniform(0, long_s))
            return f"paid {who}"

        self.spec = AgentSpec(
            model=Slow(rng, self._reply, long_s),
            tools=[pay],
            conversation_manager=NullConversationManager(),  # The model finds the prompts that notes refer to.
            unknown_tool_outcome="fail",
            retry_strategy=None,
        )

    def _reply(self, messages: Sequence[Message], *_: Any) -> Any:
        who = asked_for(messages)
        asked = {"who": who} in [
            block["toolUse"]["input"] for message in messages for block in message["content"] if "toolUse" in block
        ]
        if asked or who == "nobody" or self.rng.random() < 0.5:
            return f"answer of {who}"
        return {"toolUse": {"name": "pay", "input": {"who": who}}}

    def check(self, token: str, result: object) -> bool:
        """Note a result that is not of the token's own prompt. Whether it is its answer."""
        if not isinstance(result, AgentResult) or result.stop_reason != "end_turn":
            return False
        self.report.check(str(result).strip() == f"answer of {token}", f"{token} was given: {result}")
        return True

    async def read(self, token: str, events: Any, most: int) -> None:
        """The first events, after which the client is gone."""
        async with aclosing(events) as told:
            async for event in told:
                self.check(token, event.get("result"))
                most -= 1
                if most <= 0:
                    return

    async def client(self, session: HostedSession) -> None:
        """Come after a while, and call in some way."""
        rng = self.rng
        await anyio.sleep(rng.uniform(0, 4 * LONG_S))
        token = rng.choice(TOKENS)
        does = rng.choice(
            (
                "call",
                "call",
                "stream",
                "stream",
                "wait",
                "attach",
                "attach",
                "post",
                "cancel",
                "told",
                "nobody",
                "go on",
            )
        )
        self.report.counts[does] += 1
        try:
            self.check(token, await vanishing(rng, rng.random() < 0.7, partial(self._do, session, does, token)))
        except RepertoryError:
            self.report.counts["typed errors"] += 1

    async def _do(self, session: HostedSession, does: str, token: str) -> object:
        rng, prompt = self.rng, f"do {token}"
        options: Any = {"invocation_state": {"token": token}}
        if rng.random() < 0.3:
            options["timeout_s"] = rng.uniform(1, 2 * LONG_S)
        match does:
            case "call":
                return await session.invoke(prompt, idempotency_token=token, **options)
            case "stream":
                detach = rng.random() < 0.5
                await self.read(token, session.stream(prompt, token=token, detach=detach, **options), rng.randrange(20))
            case "wait":
                return await session.invoke(idempotency_token=token, **options)
            case "attach":
                await self.read(token, session.attach(token), rng.randrange(30))
            case "post":
                await session.post(prompt, token=token, **options)
            case "cancel":
                await session.cancel()
            case "told":
                told = await session.told(token, cancel=rng.random() < 0.3)
                if told is not None:
                    self.check(token, told.result)
            case "nobody":
                await session.invoke("do nobody")
            case _:
                await session.invoke()
        return None

    async def settle(self, session: HostedSession) -> None:
        """Every token is called until it has its answer, which it keeps."""
        for token in TOKENS:
            self.report.acknowledged += 1
            for _ in range(20):
                try:
                    result = await session.invoke(f"do {token}", idempotency_token=token)
                except RepertoryError:
                    await anyio.sleep(1)
                    continue
                if self.check(token, result):
                    again = await session.invoke(idempotency_token=token)
                    self.report.check(str(again) == str(result), f"{token} has two answers")
                    self.report.found += 1
                    break
        self.check_paid()

    def check_paid(self) -> None:
        """Whoever was paid was paid once."""
        for who, times in self.paid.items():
            self.report.check(times == 1, f"{who} was paid {times} times")


async def _round(rng: random.Random, report: Report, peers: int) -> None:
    house, shelf, network = House(rng, report), WakingShelf(), LoopbackNetwork()
    try:
        with anyio.fail_after(FOR_EVER_S):
            async with AsyncExitStack() as stack:
                runtimes = [
                    await stack.enter_async_context(
                        Runtime(sessions=shelf, peers=Peers(wire=network.wire(f"p{number}")) if peers else None)
                    )
                    for number in range(peers or 1)
                ]
                if peers:
                    await anyio.sleep(3)
                sessions = [runtime.agent(house.spec).session("s") for runtime in runtimes]
                async with anyio.create_task_group() as group:
                    for _ in range(CLIENTS):
                        group.start_soon(house.client, rng.choice(sessions))
                await house.settle(sessions[0])
    except TimeoutError:
        report.check(False, "somebody waits for ever")


def _storm(rng: random.Random, report: Report) -> None:
    """Ctrl-C again and again, in sync calls that are repeated under their tokens."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        return
    house = House(rng, report, long_s=0.02)
    spec = house.spec
    agent = Agent(
        spec.model,
        tools=[*spec.tools],
        conversation_manager=NullConversationManager(),
        unknown_tool_outcome="fail",
        callback_handler=None,
    )

    agent("do nobody")  # What the first call loads is no matter here.

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(20):
            token = rng.choice(TOKENS)
            report.counts["interrupted"] += 1
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0001, 0.03))
                try:
                    house.check(token, agent(f"do {token}", idempotency_token=token))
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                continue
            except RepertoryError:
                report.counts["typed errors"] += 1
    finally:
        signal.signal(signal.SIGALRM, before)
    for token in TOKENS:
        report.acknowledged += 1
        report.found += any(house.check(token, agent(f"do {token}", idempotency_token=token)) for _ in range(3))
    house.check_paid()


def vanishing_clients(rng: random.Random, folder: Path, seconds: float) -> Report:
    """Rounds in one process, in two that share the session, and in sync calls; on asyncio and on trio."""
    del folder, seconds  # A round is one seed, so that it can be repeated.
    report = Report()
    _storm(rng, report)
    for (backend, options), peers in ((virtual_asyncio(), 0), (virtual_trio(), 0), (virtual_asyncio(), 2)):
        anyio.run(_round, rng, report, peers, backend=backend, backend_options=dict(options))
    return report
