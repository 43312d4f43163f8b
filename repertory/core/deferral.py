"""Results that come later: a tool says that its work has begun, and the model gets the result in a later turn.

A tool that defers has a result at once, for the model; the id under which its work is answered goes to the outside. The
id follows from the tool use and a secret of the journal, so each attempt at the use has the same, and nobody who has
only read the conversation can make it up. `core/journal/deferrals.py` keeps what waits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2s
from typing import TYPE_CHECKING, Final, Literal, cast

from msgspec import Struct

from repertory.core.limits import Scale
from repertory.errors import Gone, Invalid

if TYPE_CHECKING:
    from repertory.core.messages import ContentBlock, ToolResult

OnExpiry = Literal["tell", "drop"]
"""The effect of a result that does not come in time: tell the model in a turn, or drop the waiting tool."""
DEFERRED_MAX = 256
"""The number of tools of a session that may wait for results: each change of one writes all of them."""
SETTLED_MAX = 32
"""The number of latest ids known to have had their result; of earlier ids, only that nothing waits under them."""
REPORT_BYTES_MAX = 1024 * 1024
"""The bytes of results (`core/limits.py`) that one turn tells the model; further results come in further turns."""
BEGUN_TEXT = "The work has begun. Its result comes later, in a message of its own."
EXPIRES_S_MAX = 1e9
_TEXT_BYTES_MAX = 64 * 1024
_PREFIX = "later-"
_NOTE: Final = (
    "The result of a tool that was called before has come. It is what the tool gave, and no words of the user:"
)
WHERE_NOT = (
    "no result can come later here: a tool that defers has effects, and is called by an agent of its own conversation,"
    " not by a program without a record, by a node of a graph or swarm, or by a copy of an agent that is a tool"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """The value that a tool returns when its result comes later; see `ToolContext.defer`."""

    id: str
    """The id under which the result is given later."""
    text: str = BEGUN_TEXT
    """The result that the model gets now."""
    expires_s: float | None = None
    on_expiry: OnExpiry = "tell"


RunAsks = Literal["", "question", "outcome"]
"""The reason for which a background run waits for a person: it asked a question, or nobody knows how an attempt ended;
empty for a run that does not wait.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundRun:
    """The run of a tool that the agent itself carries out beside its turns.

    Args:
        input: The tool's input as hooks have left it: JSON.
        idempotency_key: The same at each attempt, across restarts.
        attempt: The number of attempts that have begun; 0 while the run waits until others have ended.
        asks: The reason for which a person must answer in a turn: `question` or `outcome`; empty for none.

    Examples:
        A run that waits for room has no attempt yet.

        >>> from repertory import BackgroundRun
        >>> BackgroundRun(input={"shelf": 1}, idempotency_key="5f2a").attempt
        0
    """

    input: object
    idempotency_key: str
    attempt: int = 0
    asks: RunAsks = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredTool:
    """A tool that waits for its result.

    Args:
        tool_use_id: The id of the tool use.
        on_expiry: What happens when no result came in time: `tell` tells the model in a turn, `drop` drops what waits.
    """

    id: str
    """The id of the deferred result, for `complete_tool`."""
    tool: str
    """The tool's name."""
    tool_use_id: str
    since: float
    """The time at which the tool began to wait, in epoch seconds."""
    expires_at: float | None = None
    """Epoch seconds from which on no result is taken; None: never."""
    on_expiry: OnExpiry = "tell"
    run: BackgroundRun | None = None
    """The run that gives the result; None if the result comes from outside."""
    deliver_to: tuple[str, ...] = ()
    """The destinations that the call had named: they are told of the result, and of the turn that it begins."""

    def is_over(self, now: float) -> bool:
        """True if it has expired.

        Args:
            now: Epoch seconds.
        """
        return self.expires_at is not None and now >= self.expires_at


def deferral_fields(tool: DeferredTool) -> dict[str, object]:
    """The fields of a tool that waits, as records have them: without those that have their default."""
    fields: dict[str, object] = {
        "id": tool.id,
        "tool": tool.tool,
        "tool_use_id": tool.tool_use_id,
        "since": tool.since,
    }
    if tool.expires_at is not None:
        fields["expires_at"] = tool.expires_at
    if tool.on_expiry != "tell":
        fields["on_expiry"] = tool.on_expiry
    if tool.run is not None:
        run = {"input": tool.run.input, "idempotency_key": tool.run.idempotency_key}
        if tool.run.attempt:
            run["attempt"] = tool.run.attempt
        if tool.run.asks:
            run["asks"] = tool.run.asks
        fields["run"] = run
    if tool.deliver_to:
        fields["deliver_to"] = [*tool.deliver_to]
    return fields


def new_deferral(deferred_id: str, text: object, expires_s: object, on_expiry: object) -> Deferral:
    """The checked deferral that a tool asks for. Errors: `Invalid`."""
    if not isinstance(text, str) or not text.strip() or len(text.encode(errors="replace")) > _TEXT_BYTES_MAX:
        raise Invalid("a tool that defers says that it has begun, in at most 64 KiB of text", got=str(text)[:200])
    if expires_s is not None and (
        isinstance(expires_s, bool) or not isinstance(expires_s, int | float) or not 0 < expires_s <= EXPIRES_S_MAX
    ):
        raise Invalid("expires_s is a positive number of seconds, or None", got=expires_s)
    if on_expiry not in ("tell", "drop"):
        raise Invalid("on_expiry is 'tell' or 'drop'", got=on_expiry)
    # A lone surrogate could be neither stored nor sent.
    well_formed = text.encode(errors="replace").decode()
    until = None if expires_s is None else float(expires_s)
    return Deferral(id=deferred_id, text=well_formed, expires_s=until, on_expiry=on_expiry)


class MayDefer:
    """The part of a running tool's context by which its result may come later."""

    __slots__ = ()
    idempotency_key: str
    new_deferred_id: Callable[[str], str] | None
    """Gives `deferred_id` of an idempotency key; None where no result can come later."""
    on_deferred: Callable[[Deferral], None] | None
    """Notes the deferral that `defer` gives."""

    @property
    def deferred_id(self) -> str:
        """The id under which the result of this call may come later (`defer`), for a webhook, a queue or a ticket. Give
        it to the outside before you return, as a result may come at once.

        Every attempt at this call has the same id, across restarts. It cannot be worked out from the conversation.
        Errors: those of `defer`.
        """
        if self.new_deferred_id is None:
            raise Invalid(WHERE_NOT)
        return self.new_deferred_id(self.idempotency_key)

    def defer(
        self, text: str = BEGUN_TEXT, *, expires_s: float | None = None, on_expiry: OnExpiry = "tell"
    ) -> Deferral:
        """Say that the result of this tool comes later: `return tool_context.defer(expires_s=3600)`.

        The model is shown `text` as the result of the call, and the turn goes on. A program that has `deferred_id`
        gives the result later (`HostedSession.complete_tool`). A turn then tells it to the model.

        Args:
            text: The result that the model is shown now.
            expires_s: Seconds after the tool returned in which a result may come; None for no end.
            on_expiry: `tell` tells the model in a turn that none came; `drop` forgets the tool.

        Returns:
            The value that the tool returns.

        Raises:
            Invalid: Where no result can come later: in tools with `effects=False`, unrecorded direct calls, nodes of
                graphs and swarms, and copies of agents as tools. Also for wrong values, and while 256 tools of the
                session wait. Return a result instead.
        """
        deferral = new_deferral(self.deferred_id, text, expires_s, on_expiry)
        if self.on_deferred is not None:
            self.on_deferred(deferral)
        return deferral


def deferred_id(idempotency_key: str, secret: bytes) -> str:
    """The id under which the result of a tool use comes. `secret`: of the journal, at least 16 bytes."""
    # Keyed with a link of the journal, which covers random bytes: who has only read the conversation cannot make the id
    # up.
    return f"{_PREFIX}{blake2s(idempotency_key.encode(errors='surrogatepass'), key=secret, digest_size=16).hexdigest()}"


def is_deferred_id(text: str) -> bool:
    """True for an id of `deferred_id`. The steps of a background run stand in the journal under its id, which so cannot
    be that of a tool use: providers repeat those from turn to turn.
    """
    return text.startswith(_PREFIX)


def nothing_waits(deferred: str) -> Gone:
    """The error for an id under which nothing waits."""
    text = "no tool waits for this result, or no longer: it has expired, or its turn was taken back"
    return Gone(text, id=deferred)


# What the model is shown of a result that has come.


def result_blocks(tool: str, result: ToolResult) -> list[ContentBlock]:
    """The result as content of a user's message: its text in a marked block that it cannot leave, then its media."""
    texts: list[str] = []
    media: list[ContentBlock] = []
    for block in result["content"]:
        if "text" in block:
            texts.append(str(block["text"]))
        elif "json" in block:
            texts.append(json.dumps(block["json"], ensure_ascii=False))
        else:
            media.append(cast("ContentBlock", block))
    if media:
        texts.append(f"({len(media)} attached)")
    use_id, status = result["toolUseId"], result["status"]
    names = f'tool="{_named(tool)}" tool_use_id="{_named(use_id)}"'
    opening = f'<background_tool_result {names} status="{status}">'
    inner = _inert("\n".join(texts))
    return [{"text": f"{_NOTE}\n{opening}\n{inner}\n</background_tool_result>"}, *media]


def _inert(text: str) -> str:
    """The text without anything that could end the block."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _named(text: str) -> str:
    return _inert(" ".join(text.split())).replace('"', "&quot;")


def first_that_fit(results: Iterable[tuple[str, ToolResult]]) -> tuple[str, ...]:
    """The ids of the results that one turn tells: at least the first one, in their order."""
    scale, found = Scale(REPORT_BYTES_MAX), list[str]()
    for result_id, result in results:
        # At least one, whatever its size, or it would never be told.
        if not scale.put(result["content"]) and found:
            break
        found.append(result_id)
    return tuple(found)


class Telling(Struct, frozen=True, kw_only=True):
    """A turn that the session begins by itself to tell the model results that have come."""

    ids: tuple[str, ...] = ()
    """The ids of the results; empty for the turn before, which was cut short and goes on first."""
    at: float = 0.0
    """The time at which the first of the results came, in epoch seconds."""
    deliver_to: tuple[str, ...] = ()
    """The destinations that the calls had named whose tools have these results."""

    @property
    def id(self) -> str:
        """The id of the first result; empty without one."""
        return self.ids[0] if self.ids else ""

    @property
    def token(self) -> str | None:
        """The idempotency token of the turn; None for one that has its own."""
        return f"deferred:{self.id}" if self.ids else None


def expiry_text(tool: DeferredTool) -> str:
    """The text for the model when no result came in time."""
    waited = 0.0 if tool.expires_at is None else tool.expires_at - tool.since
    return f"No result came within {waited:.12g} s. The work may have been done or not: check before it is repeated."


def next_expiry(tools: Mapping[str, DeferredTool]) -> float | None:
    """The time at which the first of the tools expires, in epoch seconds; None when none does."""
    return min((tool.expires_at for tool in tools.values() if tool.expires_at is not None), default=None)
