"""Agents elsewhere that are asked over the Agent2Agent protocol, on the official `a2a-sdk` (0.3).

Loads the `a2a-sdk`; nothing but the names of the SDK's modules leads here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast
from urllib.parse import urlsplit
from uuid import uuid4

import anyio

from repertory.backends.http_answers import bound_answers
from repertory.backends.tools.decorator import tool
from repertory.backends.worker_threads import run_in_thread
from repertory.core.call_events import TypedEvent
from repertory.core.origins import is_loopback
from repertory.core.result import AgentResult, AnyStopReason
from repertory.errors import Failed, Invalid, RepertoryError, TooLarge, Unavailable
from repertory.service.decisions.a2a_parts import asked_in, blocks_sent, parts_of

try:
    import httpx
    from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
    from a2a.client import A2AClientError as UnreachableAgent
    from a2a.types import (
        AgentCard,
        Message,
        Part,
        Role,
        Task,
        TaskArtifactUpdateEvent,
        TaskState,
        TaskStatusUpdateEvent,
        TextPart,
    )
except ImportError as error:  # pragma: no cover - the tests' environment has it
    message = f"A2AAgent needs the a2a-sdk of the 0.3 series ({error}): pip install 'repertory[a2a]'"
    raise ImportError(message, name=error.name) from error

if TYPE_CHECKING:
    from repertory.backends.tools.function_tool import FunctionTool
    from repertory.core.messages import ContentBlock

A2AResponse: TypeAlias = tuple[Task, TaskStatusUpdateEvent | TaskArtifactUpdateEvent | None] | Message | Any
"""An item that an agent sends: a message, or a task with what has changed in it."""
AllowedEndpoint: TypeAlias = str | tuple[str, ClientConfig]
"""An address, alone or with how its agent is reached."""

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""The largest answer to one request, a stream of events as a whole."""
_URL_CHARS_MAX = 8192

_WORKING = (TaskState.submitted, TaskState.working, TaskState.unknown)
_STOP_REASONS: dict[TaskState, AnyStopReason] = {TaskState.input_required: "interrupt", TaskState.canceled: "cancelled"}


class A2AStreamEvent(TypedEvent):
    """An item that an agent has sent, as an event of a stream: `{"type": "a2a_stream", "event": ...}`."""

    def __init__(self, a2a_event: A2AResponse) -> None:
        super().__init__({"type": "a2a_stream", "event": a2a_event})


class A2AAgent:
    """An agent at an address, that is asked as our own are: `A2AAgent("http://127.0.0.1:9000")("What is 2 + 2?")`.
    It may be a node of a graph.

    `name`, `description`: those of its card without them, once that has been fetched. `timeout`: seconds for its card,
    and for one request, when the client is ours. `client_config`: how it is reached, such as an `httpx` client that
    signs. `a2a_client_factory`: makes its clients; use `client_config`, since what a factory's client does with
    redirects is its own.

    `allowed_origins`: where the card may lead besides the origin of `endpoint`, such as `https://api.example.com`.
    Nothing is sent anywhere else, whatever the card says, and no redirect is followed.

    Each call is a message in a context of its own: what was said before is sent again by those who need it. A call
    that the agent ended with a question has stop reason `interrupt`; `result.state["a2a_task_state"]` has the state.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: int = 300,
        client_config: ClientConfig | None = None,
        a2a_client_factory: ClientFactory | None = None,
        allowed_origins: Collection[str] = (),
    ) -> None:
        if client_config is not None and a2a_client_factory is not None:
            raise Invalid("Cannot provide both client_config and a2a_client_factory: give client_config alone")
        self.endpoint = endpoint
        self.name = name
        self.description = description
        self.timeout = timeout
        self._config = client_config
        self._factory = a2a_client_factory
        self._origins = frozenset(map(_origin, (endpoint, *allowed_origins)))
        self._card: AgentCard | None = None

    def __call__(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        """Call `invoke_async` from sync code."""
        from repertory.app.host.blocking import blocking_host

        return blocking_host().run(self.invoke_async, prompt, **kwargs)

    async def invoke_async(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        """Ask, and wait for the answer. Errors: as `stream_async`."""
        result: AgentResult | None = None
        async with aclosing(self.stream_async(prompt, **kwargs)) as events:
            async for event in events:
                result = event.get("result", result)
        if result is None:
            raise Failed("the agent ended without an answer", endpoint=self.endpoint)
        return result

    async def stream_async(self, prompt: Any = None, **_: Any) -> AsyncGenerator[dict[str, Any]]:
        """Ask, and yield what the agent sends, then `{"result": AgentResult}`.

        Errors: `Invalid` without a prompt; `Failed` when the agent sends nothing, and for a card that leads elsewhere;
        `TooLarge` beyond `ANSWER_BYTES_MAX`, and for an answer that is packed; those of the `a2a-sdk` and `httpx`.
        """
        if prompt is None:
            raise Invalid("a prompt is required: an agent elsewhere has no conversation to go on with")
        message = Message(
            role=Role.user, message_id=str(uuid4()), parts=[Part.model_validate(part) for part in parts_of(prompt)]
        )
        last: A2AResponse | None = None
        async with self._client() as client:
            async for sent in client.send_message(message):
                last = sent
                yield A2AStreamEvent(sent)
        if last is None:
            raise Failed("the agent ended without an answer", endpoint=self.endpoint)
        yield {"result": answered(last)}

    async def get_agent_card(self) -> AgentCard:
        """The agent's card, which is asked for once. Errors: `Unavailable` if it does not come in time."""
        if self._card is None:
            async with self._http() as http:
                resolver = A2ACardResolver(httpx_client=http, base_url=self.endpoint)
                with anyio.move_on_after(self.timeout):
                    self._card = await resolver.get_agent_card()
            if self._card is None:
                raise Unavailable("the agent's card did not come in time", endpoint=self.endpoint, limit_s=self.timeout)
            self.name = self.name or self._card.name
            self.description = self.description or self._card.description
        return self._card

    @asynccontextmanager
    async def _http(self) -> AsyncGenerator[httpx.AsyncClient]:
        """The user's client, which stays open, or one of ours; with bounds on where it goes and what it reads."""
        if self._config is not None and self._config.httpx_client is not None:
            yield _bounded(self._config.httpx_client)
        else:
            make = partial(httpx.AsyncClient, timeout=self.timeout)  # reads certificates
            async with await run_in_thread(make) as http:
                yield _bounded(http)

    @asynccontextmanager
    async def _client(self) -> AsyncGenerator[Any]:
        card = self._reachable(await self.get_agent_card())
        if self._factory is not None:
            yield self._factory.create(card)
            return
        async with self._http() as http:
            config = replace(self._config or ClientConfig(streaming=True), httpx_client=http)
            yield ClientFactory(config).create(card)

    def _reachable(self, card: AgentCard) -> AgentCard:
        """The card without its further interfaces at other origins. Errors: `Failed` for one that leads elsewhere."""
        if _origin(card.url) not in self._origins:
            raise Failed(
                "the agent's card leads to another origin: if you trust that one, name it in allowed_origins",
                endpoint=self.endpoint,
                to=card.url,
            )
        more = [each for each in card.additional_interfaces or [] if _origin(each.url) in self._origins]
        return card.model_copy(update={"additional_interfaces": more})


def _origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port; the names of this machine are one host. A URL that is none is an origin of its own, and so
    is a very long one: Python takes the square of some characters in its host.
    """
    if len(url) > _URL_CHARS_MAX:
        return "", url, None
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return "", url, None
    if not host:
        return "", url, None
    return parts.scheme, "localhost" if is_loopback(host) else host, port


def _bounded(client: httpx.AsyncClient) -> httpx.AsyncClient:
    """A copy of the client that follows no redirects and reads bounded answers. Shares its connections."""

    mine = copy(client)
    mine.follow_redirects = False
    bound_answers(mine, ANSWER_BYTES_MAX, TooLarge, whole=True)
    return mine


def answered(sent: A2AResponse) -> AgentResult:
    """The last thing that an agent has sent, as the result of a call."""
    if isinstance(sent, Message):
        return AgentResult(stop_reason="end_turn", message=_message(blocks_sent(json_parts(sent.parts))))
    task, _ = sent
    state = task.status.state
    spoken = json_parts(task.status.message.parts if task.status.message is not None else [])
    artifacts = json_parts([part for each in task.artifacts or [] for part in each.parts])
    first, then = (artifacts, spoken) if state == TaskState.completed or state in _WORKING else (spoken, artifacts)
    content = blocks_sent(first) or blocks_sent(then)
    return AgentResult(
        stop_reason=_STOP_REASONS.get(state, "end_turn"),
        message=_message(content),
        state={"a2a_task_state": state.value},
        interrupts=tuple(asked_in(spoken)) if state == TaskState.input_required else (),
    )


def _message(content: list[ContentBlock]) -> Any:
    return {"role": "assistant", "content": content}


def json_parts(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Parts of the `a2a-sdk` as JSON."""
    roots = [part.root for part in parts]
    return [
        {"kind": "text", "text": root.text}
        if isinstance(root, TextPart)
        else root.model_dump(by_alias=True, exclude_none=True)
        for root in roots
    ]


# The tool.

DEFAULT_A2A_CLIENT_DESCRIPTION = (
    "Ask other agents over the A2A protocol. operation='discover' gives an agent's card; operation='send_message' "
    "sends it a text and gives its answer."
)


class A2AClientError(RepertoryError, RuntimeError):
    """An agent could not be asked, or did not finish its task; the message says why."""


def make_a2a_client(
    *, allowed_endpoints: Sequence[AllowedEndpoint], name: str = "a2a_client", description: str | None = None
) -> FunctionTool[Any]:
    """A tool with which a model asks other agents, at these addresses alone, and at no other origin that their cards
    name.

    `description`: what the model is told; None for one that lists the addresses. Errors: `ValueError` for no address,
    `TypeError` for what is none.
    """
    if not allowed_endpoints:
        raise Invalid("allowed_endpoints must contain at least one endpoint")
    configs: dict[str, ClientConfig | None] = {}
    for each in cast("Sequence[Any]", allowed_endpoints):
        match each:
            case str():
                configs[each] = None
            case (str(), _):
                configs[each[0]] = each[1]
            case _:
                msg = f"Each allowed endpoint must be a string URL, or a tuple of one and a ClientConfig, not {each!r}"
                raise TypeError(msg)
    known = ", ".join(sorted(configs))

    async def ask(operation: Literal["discover", "send_message"], endpoint: str, message: str | None = None) -> Any:
        """Ask another agent.

        Args:
            operation: `discover` for the agent's card, `send_message` for an answer.
            endpoint: The agent's address.
            message: The text to send.
        """
        if endpoint not in configs:
            raise A2AClientError(f"{endpoint} is not in the allowed endpoints list: {known}")
        if operation == "send_message" and not message:
            raise A2AClientError("'message' is required for send_message")
        agent = A2AAgent(endpoint, client_config=configs[endpoint])
        what = "discover agent card" if operation == "discover" else "send message"
        try:
            if operation == "discover":
                return (await agent.get_agent_card()).model_dump(mode="json", exclude_none=True)
            result = await agent.invoke_async(message)
        except (UnreachableAgent, httpx.HTTPError, RepertoryError) as error:
            raise A2AClientError(f"Failed to {what} at {endpoint}: {error}") from error
        state = result.state.get("a2a_task_state", "completed")
        if state != "completed":
            raise A2AClientError(f"the agent's task is {state}: {result}")
        return {"message": result.message}

    description = description or f"{DEFAULT_A2A_CLIENT_DESCRIPTION} Permitted endpoints: {known}."
    return cast("FunctionTool[Any]", tool(name=name, description=description)(ask))
