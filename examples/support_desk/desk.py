"""The agent of the desk, and what a program does with it.

A session is one case of one customer, `CUSTOMER.CASE`. All cases of a customer share a memory: SQLite stores each
message and its memory in the same commit. A refund asks a person first, and waits in the journal for the answer, which
may come in another process.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from repertory import (
    AgentResult,
    AgentSpec,
    HostedSession,
    Interrupt,
    InterruptResponseContent,
    Message,
    Model,
    Runtime,
    ScriptedModel,
    SearchOptions,
    Sessions,
    SQLiteMemoryStore,
    SQLiteSessions,
    ToolContext,
    named_model,
    tool,
)

from .shop import find_order, pay_back

PROMPT = """You work at the support desk of a shop. Look orders up before you speak of them. Recall what the customer
said in earlier cases when it may matter. Never promise a refund: call the tool, and tell the customer its result."""


@dataclass(frozen=True)
class Settings:
    """What the environment says."""

    data: Path = Path("support_desk_data")
    """`SUPPORT_DESK_DATA`: the folder of the sessions, the memory and the refunds."""
    model: str = ""
    """`REPERTORY_MODEL`: `anthropic`, `openai:gpt-5.4`, a Bedrock id, and so on. Empty: rules, without an account."""
    drain_timeout_s: float = 20.0
    """`SUPPORT_DESK_DRAIN_S`: how long ending may take."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Settings:
        """Read them."""
        return cls(
            Path(environ.get("SUPPORT_DESK_DATA", cls.data)),
            environ.get("REPERTORY_MODEL", cls.model),
            float(environ.get("SUPPORT_DESK_DRAIN_S", cls.drain_timeout_s)),
        )

    @property
    def database(self) -> Path:
        """Sessions and memory, in one file."""
        return self.data / "desk.db"


def customer_of(session_id: str) -> str:
    """Whose case it is."""
    return session_id.partition(".")[0]


def agent_of(settings: Settings) -> AgentSpec:
    """The agent for all cases. Its tools find the customer in the id of the session."""

    @tool(effects=False)
    def look_up_order(number: str, agent: Any) -> str:
        """Look up one of the customer's orders by its number."""
        order = find_order(customer_of(agent.session_id), number)
        return f"Order {number}: {order.item}, {order.price:.2f}, {order.status}." if order else f"No order {number}."

    @tool(effects=False)
    async def recall(query: str, agent: Any) -> str:
        """Search what the customer said in all cases."""
        async with aclosing(SQLiteMemoryStore(settings.database, scope=customer_of(agent.session_id))) as memory:
            found = await memory.search(query, SearchOptions(max_search_results=10))
        told = [(each.metadata or {}, each.content) for each in found]
        said = [text for of, text in told if of["role"] == "user" and of["session_id"] != agent.session_id]
        return f"The customer said: {said[0]}" if said else "Nothing is known."

    @tool
    def refund(number: str, tool_context: ToolContext, agent: Any) -> str:
        """Pay an order back. A person has to approve it."""
        customer = customer_of(agent.session_id)
        order = find_order(customer, number)
        if order is None:
            return f"No order {number}."
        # Raises at first, and the turn waits. It runs again from the top when the answer is there.
        if tool_context.interrupt("refund", reason={"order": number, "amount": order.price}) != "yes":
            return f"A person refused to pay order {number} back."
        pay_back(settings.data / "refunds.jsonl", customer, number, order.price, tool_context.idempotency_key)
        return f"{order.price:.2f} for order {number} is paid back."

    model: Model = named_model(settings.model) if settings.model else ScriptedModel([rules], loop=True)
    return AgentSpec(
        name="desk",
        model=model,
        system_prompt=PROMPT,
        tools=[look_up_order, recall, refund],
        unknown_tool_outcome="retry",  # after a kill: `pay_back` knows by its key what is paid
    )


def rules(messages: Sequence[Message], tools: object, system_prompt: object) -> Any:
    """Stand in for a model, so that everything else can be tried without an account."""
    content: Sequence[Mapping[str, Any]] = messages[-1]["content"]
    for block in content:
        if "toolResult" in block:
            return " ".join(str(part.get("text", part)) for part in block["toolResult"]["content"])
    text = " ".join(str(block.get("text", "")) for block in content)
    if order := re.search(r"order (\w+)", text):
        name = "refund" if "back" in text else "look_up_order"
        return {"toolUse": {"name": name, "input": {"number": order[1]}}}
    return {"toolUse": {"name": "recall", "input": {"query": text}}} if "?" in text else "I wrote it down."


class Desk:
    """What the command line does, and what a web service of yours would do."""

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        self._sessions = Sessions(SQLiteSessions(settings.database))
        self._agent = runtime.agent(agent_of(settings))

    async def ask(self, session_id: str, text: str, token: str | None = None) -> AgentResult:
        """One message of a customer. The same token again, such as the id of a mail, runs nothing twice."""
        session = self._agent.session(session_id)
        await self._go_on(session)
        return await session.invoke(text, idempotency_token=token)

    async def waiting(self) -> list[tuple[str, Interrupt]]:
        """The questions that no person has answered, of all cases. This disturbs no case that runs."""
        found: list[tuple[str, Interrupt]] = []
        for info in await self._sessions.list():
            for shown in (await self._sessions.show(info.session_id)).agents.values():
                found += [(info.session_id, interrupt) for interrupt in shown.waits_for]
        return found

    async def answer(self, session_id: str, response: str) -> AgentResult | None:
        """Answer every open question of a case, and go on with it. None: there is nothing to go on with."""
        session = self._agent.session(session_id)
        answers: list[InterruptResponseContent] = [
            {"interruptResponse": {"interruptId": interrupt.id, "response": response}}
            for interrupt in await session.interrupts()
        ]
        return await session.invoke(answers) if answers else await self._go_on(session)

    async def _go_on(self, session: HostedSession) -> AgentResult | None:
        """Finish the turn whose process was killed, if there is one."""
        pending = await session.pending()
        return await session.invoke() if pending is not None and pending.why == "cut short" else None


@asynccontextmanager
async def open_desk(settings: Settings) -> AsyncGenerator[Desk]:
    """A desk in a runtime of its own. SIGTERM and Ctrl-C let the turn that runs end, and store it."""
    await anyio.Path(settings.data).mkdir(parents=True, exist_ok=True)
    place = SQLiteSessions(settings.database, remember=customer_of)
    # A service that stays wakes the cases whose turns were killed. A process for one command leaves that to `_go_on`.
    async with (
        Runtime(sessions=place, drain_timeout_s=settings.drain_timeout_s, wakes_max=0) as runtime,
        anyio.create_task_group() as group,
    ):
        await group.start(runtime.serve_signals)
        yield Desk(settings, runtime)
        group.cancel_scope.cancel()
