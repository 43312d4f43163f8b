"""Requests to an ASGI application in process, and sessions with hostile contents to look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from repertory import (
    AgentSpec,
    Inspector,
    Runtime,
    ScriptedModel,
    SlidingWindowConversationManager,
    SQLiteSessions,
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
