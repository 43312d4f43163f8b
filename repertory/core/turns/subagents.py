"""Agents that tools of another agent have started, its subagents: their ids, their depth, their share of a budget.

A subagent of a stored agent is another agent of the same session, with a journal of its own there. Its id follows from
the tool call that started it, so the call finds it again when it runs again after a kill. What it has spent stands in
its messages, so a budget can be counted from there.

    subagent.1.4f1c...      started by an agent
    subagent.2.90ab...      started by such a one
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2s
from typing import TYPE_CHECKING, TypedDict, cast

from repertory.core.budget import Budget
from repertory.core.journal.pending_tools import pending_tools_of
from repertory.core.turns.activity import agent_facts
from repertory.errors import Invalid, LimitReached

if TYPE_CHECKING:
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.image import Image
    from repertory.core.messages import Json, Message, Usage

SUBAGENT = "subagent."
"""The beginning of the id of each subagent."""
DEPTH_MAX = 8
"""The number of subagents that may stand one below another. Each is a journal, and a model that starts one like itself
would never end.
"""
STARTS_MAX = 256
"""Subagents that one tool call may start."""
RETAINED = 100
"""Subagents that have ended and stay in their session, unless the agent says otherwise."""
_ID = re.compile(r"subagent\.([1-9][0-9]*)\.[0-9a-f]{32}")


def is_subagent(agent_id: str) -> bool:
    """True for the id of a subagent."""
    return _ID.fullmatch(agent_id) is not None


def without_subagents(agents: Collection[str]) -> list[str]:
    """The ids of the agents that no other agent has started, sorted; all of them if there are none."""
    return sorted(each for each in agents if not is_subagent(each)) or sorted(agents)


def depth_of(agent_id: str) -> int:
    """The number of agents above this one, 0 for one that is no subagent."""
    found = _ID.fullmatch(agent_id)
    return 0 if found is None else int(found[1])


def subagent_id(parent: str, idempotency_key: str, label: str) -> str:
    """The id of a subagent among the agents of its session. `label`: its name within the tool call with this key.

    Errors: `LimitReached` for one that would stand too deep.
    """
    depth = depth_of(parent) + 1
    if depth > DEPTH_MAX:
        text = "too many subagents stand one below another: an agent that starts one like itself never ends"
        raise LimitReached(text, depth_max=DEPTH_MAX)
    of = "\0".join((parent, idempotency_key, label))
    return f"subagent.{depth}.{blake2s(of.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"


# Retention.


def retained_at_most(retain: int) -> int:
    """The number of ended subagents from which on the oldest go: a fourth more than stay, so that they go together."""
    return retain + retain // 4


def at_rest(fold: Fold) -> bool:
    """True if no tool call of the agent can go on: nothing of a turn is open, and nothing runs in the background. What
    its subagents have found is on record then.
    """
    facts = agent_facts(pending_tools_of(fold), fold.deferred)
    return not facts.asks and not facts.cut_short and all(tool.run is None for tool in fold.deferred.values())


def to_forget(ended: Mapping[str, float], retain: int) -> list[str]:
    """The subagents that go, the oldest first. `ended`: the times of their last changes."""
    if len(ended) <= retained_at_most(retain):
        return []
    oldest = sorted(ended, key=lambda each: (ended[each], each))
    return oldest[: len(ended) - retain]


class Labels:
    """The names of the subagents that one attempt at a tool call starts, the same in each attempt."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def next(self, name: str | None, agent: str, prompt: str) -> str:
        """The label of the next subagent. Without a `name` it follows from the agent and the prompt: subagents that are
        started beside each other have no order. Errors: `Invalid` for a name twice; `LimitReached`.
        """
        if sum(self._counts.values()) >= STARTS_MAX:
            raise LimitReached("a tool call has started too many subagents", subagents_max=STARTS_MAX)
        base = f"={name}" if name is not None else f"{agent}\0{prompt}"
        count = self._counts[base] = self._counts.get(base, 0) + 1
        if name is not None and count > 1:
            raise Invalid("each subagent of a tool call has a name of its own", name=name)
        return base if count == 1 else f"{base}\0{count}"


# Budgets.


class Share(TypedDict, total=False):
    """The bounds of a budget as JSON."""

    total_tokens: float
    output_tokens: float
    cost: float
    prices: dict[str, list[float]]


def share_of(budget: Budget | None, around: Sequence[Budget]) -> Share:
    """The bounds for work that outlives the call: those of its own budget, and what is left of those `around` it.

    Errors: `LimitReached` when nothing is left.
    """
    share: Share = {}
    for each in (*(() if budget is None else (budget,)), *around):
        if each.used_up is not None:
            raise LimitReached("the budget of the call is used up", reason=each.used_up)
        remaining = each.remaining
        for name in ("total_tokens", "output_tokens"):
            if remaining[name] < share.get(name, math.inf):
                share[name] = remaining[name]
        # Costs in different units cannot be compared: the first that is limited counts.
        if remaining["cost"] < math.inf and "cost" not in share:
            share["cost"] = remaining["cost"]
            share["prices"] = {model: [*price] for model, price in each.prices.items()}
    return share


def budget_of(share: object) -> Budget | None:
    """The budget with these bounds; None without any. Errors: `Invalid`."""
    if not isinstance(share, Mapping) or not share:
        return None
    given = cast("Mapping[str, Json]", share)
    bounds = {name: cast("int", given[name]) for name in ("total_tokens", "output_tokens") if name in given}
    prices = cast("Mapping[str, Sequence[float]]", given.get("prices", {}))
    if not isinstance(cast("object", prices), Mapping):
        raise Invalid("prices are a mapping", got=prices)
    cost = cast("float | None", given.get("cost"))
    # As JSON has them. `Budget` refuses what is no price.
    pairs = {
        model: cast("tuple[float, float]", (*price,) if isinstance(price, list) else price)
        for model, price in prices.items()
    }
    return Budget(**bounds, cost=cost, prices=pairs)


def began_after(image: Image, token: str) -> int | None:
    """The sequence number before the first message of the turn with this token; None for one that has not begun."""
    known = image.finished_turns.get(token)
    if known is not None:
        return known.seq - 1
    return image.tokens[token] - 1 if token in image.tokens else None


def usages(messages: Iterable[Message]) -> list[Usage]:
    """The tokens of each model call whose answer is among the messages."""
    return [used for each in messages if (used := each.get("metadata", {}).get("usage")) is not None]
