"""Requests to an ASGI application in process, and sessions with hostile contents to look at."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from repertory import (
    Agent,
    AgentSpec,
    Graph,
    GraphBuilder,
    HumanInTheLoop,
    Inspector,
    Runtime,
    ScriptedModel,
    SlidingWindowConversationManager,
    SQLiteSessions,
    ToolContext,
    tool,
)

HOSTILE_ID = "x\"'><img src=x onerror=alert(1)> ünï?#%2F"
HOSTILE = (
    "<script>alert(1)</script> [here](javascript:alert(1)) ![i](x) \x1b[31mred\x1b[0m \u202eright\n"
    "<b onclick=alert(1)>b</b> </textarea></title> {{ 7 * 7 }}\n```\n</code></pre><script>alert(2)</script>\n```"
)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass
class Visitor:
    """A browser without a screen: it keeps its cookie."""

    app: Inspector
    host: str = "127.0.0.1:8400"
    client: str = "127.0.0.1"
    headers: dict[str, str] = field(default_factory=dict)

    async def get(self, path: str, **headers: str) -> Answer:
        return await self._ask("GET", path, b"", headers)

    async def post(self, path: str, form: Mapping[str, str], **headers: str) -> Answer:
        return await self._ask("POST", path, urlencode(form).encode(), headers)

    async def _ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        path, _, query = path.partition("?")
        given = {"host": self.host, "accept": "text/html", **self.headers}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquoted(path),
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()],
            "client": (self.client, 5000),
            "server": ("127.0.0.1", 8400),
        }
        sent: list[dict[str, object]] = []
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, object]:
            return waiting.pop() if waiting else {"type": "http.disconnect"}

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        await self.app(scope, receive, send)  # type: ignore[arg-type]
        names = {name.decode(): value.decode("latin-1") for name, value in sent[0]["headers"]}  # type: ignore[attr-defined]
        if "set-cookie" in names:
            self.headers["cookie"] = names["set-cookie"].partition(";")[0]
        whole = b"".join(message.get("body", b"") for message in sent[1:])  # type: ignore[misc]
        return Answer(int(str(sent[0]["status"])), names, whole)


def unquoted(path: str) -> str:
    from urllib.parse import unquote

    return unquote(path)


@tool(effects=False)
def price(item: str) -> str:
    """Look up what an item costs."""
    return f"<script>alert({item!r})</script>"


def model(*, loop: bool = True) -> ScriptedModel:
    ask = [
        {"text": "Let me see."},
        {"toolUse": {"name": "price", "input": {"item": "</pre><script>alert(3)</script>"}}},
    ]
    return ScriptedModel([ask, HOSTILE], loop=loop)


async def fill(place: SQLiteSessions, *, turns: int = 3) -> None:
    """Two sessions: one with some turns, and one with a hostile id."""
    window = SlidingWindowConversationManager(window_size=6)
    async with Runtime(sessions=place) as runtime:
        agent = runtime.agent(
            AgentSpec(name="helper", model=model(), tools=[price], conversation_manager=window, state={"key": HOSTILE})
        )
        for number in range(turns):
            await agent.session("marta").invoke(f"{HOSTILE} number {number}")
        await agent.session(HOSTILE_ID).invoke(HOSTILE)


@tool
def pay(to: str, amount: int) -> str:
    """Pay somebody.

    Args:
        to: Who gets it <b>first</b>.
    """
    return f"paid {amount} to {to}"


@tool
def ship(to: str) -> str:
    """Ship the parcel."""
    raise ValueError(f"<script>alert(4)</script> the road to {to} is closed")


@tool
def confess(tool_context: ToolContext) -> str:
    """Ask a person in hostile words."""
    return str(tool_context.interrupt("</strong><img src=x onerror=alert(7)>", reason={HOSTILE: HOSTILE}))


def using(name: str, **given: object) -> dict[str, object]:
    return {"toolUse": {"name": name, "input": given}}


async def fill_states(place: SQLiteSessions) -> None:
    """Sessions in every state that a stored session can have: asking, failed, without an answer, and runs of graphs."""
    asked = AgentSpec(
        name="clerk",
        model=ScriptedModel([using("pay", to="</pre><img src=x onerror=alert(5)>", amount=900), "Paid."], loop=True),
        tools=[pay],
        interventions=[HumanInTheLoop()],
    )
    async with Runtime(sessions=place) as runtime:
        await runtime.agent(asked).session("asking").invoke("Pay the miller <script>alert(6)</script>.")
        shipper = AgentSpec(name="shipper", model=ScriptedModel([using("ship", to="Ys"), "It failed."]), tools=[ship])
        await runtime.agent(shipper).session("failed-tool").invoke("Ship it.")
        broken = AgentSpec(name="broken", model=ScriptedModel([ValueError("the model is down")]))
        with contextlib.suppress(Exception):
            await runtime.agent(broken).session("unanswered").invoke("Hello?")
        asker = AgentSpec(name="asker", model=ScriptedModel([using("confess")]), tools=[confess])
        await runtime.agent(asker).session("hostile-question").invoke(HOSTILE)
        graph = runtime.orchestrator("office", office)
        await graph.session("waiting-run").invoke("Sell the mill.")
        wide = runtime.orchestrator("crowd", crowd)
        await wide.session("wide-run").invoke("Go.")
        with contextlib.suppress(Exception):
            await runtime.orchestrator("broken-office", broken_office).session("failed-run").invoke("Go.")


def office(_: str) -> Graph:
    """Two who look things up, one who asks before it pays, and one who waits for that."""

    def says(text: str) -> Agent:
        return Agent(ScriptedModel([text], loop=True), callback_handler=None)

    payer = Agent(
        ScriptedModel([using("pay", to="the miller", amount=40), "Paid."], loop=True),
        tools=[pay],
        interventions=[HumanInTheLoop()],
        callback_handler=None,
    )
    builder = GraphBuilder()
    builder.add_node(says("<b>The law</b> allows it."), "law <i>firm")
    builder.add_node(says("It is worth 900."), "prices")
    builder.add_node(says("Start."), "desk")
    builder.add_node(payer, "payer")
    builder.add_node(says("Done."), "archive")
    for one, other in (
        ("desk", "law <i>firm"),
        ("desk", "prices"),
        ("law <i>firm", "payer"),
        ("prices", "payer"),
        ("payer", "archive"),
        ("prices", "archive"),
    ):
        builder.add_edge(one, other)
    builder.set_graph_id("office")
    return builder.build()


def crowd(_: str, nodes: int = 60) -> Graph:
    """Very many nodes behind one, and one behind them."""
    builder = GraphBuilder()
    names = [f"n{number}" for number in range(nodes)]
    for each in ("first", *names, "last"):
        builder.add_node(Agent(ScriptedModel(["Fine."]), callback_handler=None), each)
    for each in names:
        builder.add_edge("first", each)
        builder.add_edge(each, "last")
    builder.set_graph_id("crowd")
    return builder.build()


def broken_office(_: str) -> Graph:
    """A node that fails."""
    builder = GraphBuilder()
    builder.add_node(Agent(ScriptedModel(["Fine."]), callback_handler=None), "first")
    builder.add_node(Agent(ScriptedModel([ValueError("no <b>ink</b>")]), callback_handler=None), "printer")
    builder.add_edge("first", "printer")
    builder.set_graph_id("broken-office")
    return builder.build()
