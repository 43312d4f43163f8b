"""A tool server: the connection to it, the calls in flight, and what its tools know of it.

State: the connection, open for as long as the incarnation. Fails: with the connection, for any reason; its supervisor
starts it again with growing pauses and never gives up, and until then the tools answer with errors. Pace: the server's;
calls run in jobs of their own, side by side. Supervised by a supervisor of its own under the root, so that a server
that fails again and again stops no other actor.

    tools github    supervisor, never gives up
    `- connection   this actor
"""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar, assert_never, cast

import anyio
from anyio.lowlevel import current_token
from msgspec import Struct

from repertory.backends.sdk_members import SdkMembers
from repertory.core.limits import RESULT_BYTES
from repertory.core.messages import ToolResult, ToolSpec, ToolUse, error_result
from repertory.core.tools import exception_text
from repertory.errors import ActorDead, Invalid, RepertoryError, Unavailable
from repertory.runtime.actor import Actor
from repertory.runtime.mailbox import MailboxSettings
from repertory.runtime.message import Ask, Next, carry_on
from repertory.runtime.spec import Backoff, ChildSpec, SupervisorSettings
from repertory.runtime.supervisor import Supervisor

if TYPE_CHECKING:
    from repertory.backends.ports import ToolContext
    from repertory.backends.tool_ports import CallDetails, OfferedTool, ToolConnection, ToolSource
    from repertory.runtime.actor import Job
    from repertory.runtime.message import ReplySlot
    from repertory.runtime.ref import ActorRef

R = TypeVar("R")

_ENDED = "the connection ended"
_MAILBOX = MailboxSettings(capacity=10_000)
"""Messages here wait only to be handled; the calls run in jobs."""
# A server may be down for a weekend, and has to be there again when it is back.
_SUPERVISION = SupervisorSettings(
    intensity=sys.maxsize, failures_max=sys.maxsize, backoff=Backoff(base_s=0.25, limit_s=30.0)
)


class CallTool(Struct, Ask[ToolResult], frozen=True, kw_only=True, eq=False):
    """Run a tool of the server. Compared by identity, because the object also identifies the call. Errors:
    `Unavailable`.
    """

    name: str
    tool_use: ToolUse
    result_bytes: int = RESULT_BYTES
    details: CallDetails | None = None


class ServerQuery(Struct, Ask[object], frozen=True, kw_only=True, eq=False):
    """Ask the server for something else that it offers; see `ToolConnection.query`."""

    method: str
    arguments: Mapping[str, object]


class Withdraw(Struct, frozen=True, kw_only=True):
    """The asker no longer waits for this call: the server is to drop the work."""

    request: Ask[object]


ToolServerMessage: TypeAlias = "CallTool | ServerQuery | Withdraw"


class ToolServer(Actor[ToolServerMessage]):
    """Connects when it starts; the start ends when the server's tools are known."""

    def __init__(self, source: ToolSource, link: ServerLink) -> None:
        self._source = source
        self._link = link
        self._jobs: dict[Ask[object], Job] = {}
        self._connection: ToolConnection | None = None

    def summary(self) -> object:
        return {"server": self._source.name, "calls": len(self._jobs), "tools": len(self._link.tools)}

    async def on_start(self) -> None:
        opened = anyio.Event()
        self.context.job(self._hold, opened, name="connection")
        await opened.wait()

    async def handle(self, message: ToolServerMessage) -> Next:
        match message:
            case CallTool() | ServerQuery():
                slot = self.context.defer()
                # By identity of the message (`eq=False`), which the asker names to withdraw it.
                self._jobs[message] = self.context.job(self._answer, message, slot, name=_name_of(message))
                return carry_on()
            case Withdraw(request=request):
                job = self._jobs.get(request)
                if job is not None:
                    job.cancel()
                return carry_on()
            case _:
                assert_never(message)

    async def _hold(self, opened: anyio.Event) -> None:
        """Keep the connection open. It is entered and left here, in one task, as scopes and task groups require."""
        error: RepertoryError = Unavailable(_ENDED)
        try:
            async with self._source.connect() as connection:
                error = await self._follow(connection, opened)
        except RepertoryError as failure:
            error = failure
        self._link.explain(error)
        # A connection that has ended fails the actor: its supervisor connects anew, after a pause.
        raise error

    async def _follow(self, connection: ToolConnection, opened: anyio.Event) -> RepertoryError:
        """Offer the server's tools, and new ones when they change, until the connection has ended; returns the reason.

        The tools are told of the end here, before the connection is left, which may take time.
        """
        self._connection = connection
        why = _ENDED
        try:
            while True:
                # Tools first, then the news: a caller that finds the server there finds its tools too.
                self._link.rise(self.context.self_ref, await connection.tools())
                opened.set()
                await connection.changed()
        except RepertoryError as error:
            why = str(error)
            return error
        finally:
            self._link.fall(why)

    async def _answer(self, message: CallTool | ServerQuery, slot: ReplySlot[object]) -> None:
        assert self._connection is not None  # Messages are handled after `on_start`.
        try:
            match message:
                case CallTool():
                    asked = message.name, message.tool_use, message.result_bytes, message.details
                    slot.reply(await self._connection.call(*asked))
                case ServerQuery(method=method, arguments=arguments):
                    slot.reply(await self._connection.query(method, arguments))
        except RepertoryError as error:
            slot.fail(error)
        finally:
            self._jobs.pop(message, None)


class ServerLink:
    """The link between a server's tools and all incarnations of its actor: whether the server is there, and its
    address.

    A request through it never waits for a restart: while the server is away, and for requests in flight when it goes,
    the answer is `Unavailable`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.tools: tuple[ServedTool, ...] = ()
        """The server's last offer. A new tuple exactly when the offer has changed."""
        self.across: Callable[[Callable[[], Awaitable[object]]], Awaitable[object]] | None = None
        """Runs a function in the link's event loop for a caller in another one; None: such callers are refused."""
        self._offered: tuple[OfferedTool, ...] = ()
        self._loop = current_token().native_token
        self._ref: ActorRef[ToolServerMessage] | None = None
        self._away: str | None = "it was not opened yet"
        self._why = _ENDED
        """The error text for requests that were in flight when the server last went away."""
        self._waiting: set[anyio.CancelScope] = set()

    def rise(self, ref: ActorRef[ToolServerMessage], offered: Sequence[OfferedTool]) -> None:
        """Note that the server is there and offers these tools."""
        self._ref, self._away = ref, None
        # The same objects as long as nothing has changed: registries compare tuples to know whether they are up to
        # date.
        if tuple(offered) != self._offered:
            self._offered = tuple(offered)
            self.tools = tuple(ServedTool(offer, self) for offer in offered)

    def fall(self, why: str) -> None:
        """The server is away. Requests in flight fail now, with this reason."""
        self._away, self._why = self._away or _ENDED, why
        # At once, and not when the actor has ended: leaving a connection may take seconds, and the model can try
        # something else.
        for scope in self._waiting:
            scope.cancel()

    @property
    def is_there(self) -> bool:
        """True if requests reach the server now, as far as is known."""
        return self._away is None

    def explain(self, error: RepertoryError) -> None:
        """Set the reason why the server is away."""
        self._away = str(error)

    async def call(
        self, name: str, tool_use: ToolUse, result_bytes: int = RESULT_BYTES, details: CallDetails | None = None
    ) -> ToolResult:
        """Run a tool. If cancelled, the server is told to drop it.

        Errors: `Unavailable`; `TooLarge` for a result larger than `result_bytes`; `Invalid` in another loop, if there
        is no way `across`.
        """
        return await self._ask(CallTool(name=name, tool_use=tool_use, result_bytes=result_bytes, details=details))

    async def query(self, method: str, arguments: Mapping[str, object]) -> object:
        """Ask for something else that the server offers. Errors: as `call`; `Failed` when the server refuses."""
        return await self._ask(ServerQuery(method=method, arguments=arguments))

    async def _ask(self, message: Ask[R]) -> R:
        if current_token().native_token is not self._loop:
            if self.across is not None:
                return cast("R", await self.across(partial(self._ask, message)))
            raise Invalid("the tool server was opened in another event loop or thread; use it there", server=self.name)
        if self._away is not None or self._ref is None:
            raise Unavailable(f"the tool server is away: {self._away}", server=self.name)
        with anyio.CancelScope() as scope:
            self._waiting.add(scope)
            try:
                return await self._ref.ask(message, timeout_s=math.inf)
            except (ActorDead, Unavailable) as error:
                raise self._gone(error) from error
            except anyio.get_cancelled_exc_class():
                # A tell, since nothing can be awaited in a cancelled scope.
                self._ref.tell(Withdraw(request=message))
                raise
            finally:
                self._waiting.discard(scope)
        # Reached when `fall` has cancelled the scope.
        raise self._gone()

    def _gone(self, error: RepertoryError | None = None) -> Unavailable:
        why = str(error) if isinstance(error, Unavailable) else self._why
        message = f"the tool server ended; the call may or may not have taken effect: {why}"
        return Unavailable(message, server=self.name)


class ServedTool(SdkMembers):
    """A `Tool` that a server runs. It outlives the server's failures; calls while the server is away give an error
    result.
    """

    tool_type = "python"

    def __init__(self, offered: OfferedTool, link: ServerLink, known_as: str | None = None) -> None:
        """`known_as`: the server's name of the tool; None: the connection knows it by the offer's name."""
        self._offered = offered
        self._link = link
        self._known_as = known_as or offered.spec["name"]

    def __repr__(self) -> str:
        return f"ServedTool(name={self.name!r}, server={self._link.name!r})"

    @property
    def name(self) -> str:
        return self._offered.spec["name"]

    @property
    def spec(self) -> ToolSpec:
        return self._offered.spec

    @property
    def effects(self) -> bool:
        return self._offered.effects

    @property
    def idempotent(self) -> bool:
        return self._offered.idempotent

    @property
    def mcp_tool(self) -> object:
        """The tool as the `mcp` package read it; None for a source of another kind."""
        return self._offered.origin

    @property
    def timeout_s(self) -> float | None:
        """Seconds one call may take; None means no bound."""
        return self._offered.timeout_s

    async def run(self, tool_use: ToolUse, context: ToolContext) -> ToolResult:
        """Run once. If the server is away, or goes away meanwhile, the result has status `error`, at once."""
        try:
            return await self._link.call(self._known_as, tool_use, context.result_bytes)
        except RepertoryError as error:
            if context.on_exception is not None:
                context.on_exception(error)
            return error_result(tool_use["toolUseId"], exception_text(error))


def tool_server_spec(name: str, source: ToolSource, link: ServerLink) -> ChildSpec:
    """The supervisor of one server's connection; its start ends when the server's tools are known.

    If the first start fails, the supervisor's start fails, with the source's own error as the innermost cause. The
    source bounds the time of a start.
    """

    def connection() -> ToolServer:
        return ToolServer(source, link)

    child = ChildSpec(name="connection", factory=connection, mailbox=_MAILBOX, start_timeout_s=math.inf)
    return ChildSpec(name=name, factory=lambda: Supervisor((child,), _SUPERVISION), start_timeout_s=math.inf)


def _name_of(message: CallTool | ServerQuery) -> str:
    return f"call {message.name}" if isinstance(message, CallTool) else message.method
