"""Agents that tools of another agent have started, its subagents: their ids, their depth, their share of a budget.

A subagent of a stored agent is another agent of the same session, with a journal of its own there. Its id follows from
the tool call that started it, so the call finds it again when it runs again after a kill. What it has spent stands in
its messages and, for calls that no message shows, in records of their own; who has started it, too. So a budget can be
counted from there, for it and all below it.

    subagent.1.4f1c...      started by an agent
    subagent.2.90ab...      started by such a one
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2s
from typing import TYPE_CHECKING, NamedTuple, TypedDict, cast

from repertory.core.budget import Budget, PastCall
from repertory.core.journal.pending_tools import pending_tools_of
from repertory.core.journal.records import DeferralsChanged, MessageAdded, SpentCall, SubagentSpending
from repertory.core.turns.activity import agent_facts
from repertory.errors import Invalid, LimitReached

if TYPE_CHECKING:
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.records import Record
    from repertory.core.messages import Json, Usage

SUBAGENT = "subagent."
"""The beginning of the id of each subagent."""
DEPTH_MAX = 8
"""The number of subagents that may stand one below another. Each is a journal, and a model that starts one like itself
would never end.
"""
SHARE = "_share"
"""The property of a tool's input that holds the bounds of a subagent that was detached: they may only be tighter than
others, as a model may write it too.
"""
_BOUNDS = ("total_tokens", "output_tokens", "cost")
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


class Beginning(NamedTuple):
    """A subagent and the agent that has started it."""

    subagent: str
    """The id of the subagent."""
    parent: str
    """The id of the other one."""
    parent_turn: str
    """The name of its turn."""
    who: str
    """The subagent, as budgets list it."""
    model: str
    """The id of the subagent's model."""


class UnshownCalls(Budget):
    """Has no bounds, and gathers the model calls for a subagent whose answers are no messages of its own, such as
    summaries. Its journal states them.
    """

    def __init__(self, begun: Beginning) -> None:
        super().__init__()
        self.begun = begun
        self._stated = False
        """True once the journal has been told of the beginning in this process."""
        self._calls: deque[SpentCall] = deque()

    def charge(self, who: str, model: str, usage: Usage) -> None:
        """Gather an answered model call. From any thread."""
        self._calls.append(SpentCall(who, model, *_tokens_of(usage)))

    def show(self, usage: Usage) -> None:
        """Take the subagent's own call with this usage out: a message shows it."""
        calls = tuple(self._calls)  # Other threads may add to it meanwhile.
        own = (each for each in calls if (each.who, *each[2:]) == (self.begun.who, *_tokens_of(usage)))
        if (found := next(own, None)) is not None:
            self._calls.remove(found)

    def throw_away(self, usage: Usage) -> None:
        """Gather a call of the subagent itself again: no message shows it after all."""
        self.charge(self.begun.who, self.begun.model, usage)

    def take_over(self, work: str, calls: Iterable[PastCall]) -> None:
        """Nothing: each subagent's calls stand in its own journal."""

    def take(self, at: float, *, others: bool) -> SubagentSpending | None:
        """The record to add to the journal now; None for none. `others`: others are added."""
        if not self._calls and (self._stated or not others):
            return None
        calls = tuple(self._calls.popleft() for _ in range(len(self._calls)))
        begun, self._stated = self.begun, True
        return SubagentSpending(
            at=at, parent=begun.parent, parent_turn=begun.parent_turn, who=begun.who, model=begun.model, calls=calls
        )


def _tokens_of(usage: Usage) -> tuple[int, int, int]:
    return usage["inputTokens"], usage["outputTokens"], usage["totalTokens"]


def unshown_calls_of(agent_id: str, budgets: Iterable[Budget]) -> UnshownCalls | None:
    """The one of these that is this subagent's; None for one that has no journal."""
    calls = (each for each in budgets if isinstance(each, UnshownCalls))
    return next((each for each in calls if each.begun.subagent == agent_id), None)


def bounding(budgets: Iterable[Budget]) -> tuple[Budget, ...]:
    """The budgets of callers and programs among these."""
    return tuple(each for each in budgets if not isinstance(each, UnshownCalls))


class PastWork(NamedTuple):
    """The spending of a subagent that is on record."""

    agent_id: str
    begun: SubagentSpending
    """The first record of who has started it."""
    calls: Sequence[PastCall]


def past_work(agent_id: str, records: Sequence[Record | None]) -> PastWork | None:
    """The spending that is on record of a subagent, from all records of its journal; None if it has not begun."""
    found = [each for each in records if isinstance(each, SubagentSpending)]
    if not found:
        return None
    begun, calls = found[0], list[PastCall]()
    for record in records:
        if isinstance(record, MessageAdded):
            calls += [PastCall(record.at, begun.who, begun.model, used) for used in usages(record)]
    for record in found:
        for who, model, *tokens in record.calls:
            used: Usage = {"inputTokens": tokens[0], "outputTokens": tokens[1], "totalTokens": tokens[2]}
            calls.append(PastCall(record.at, who, model, used))
    return PastWork(agent_id, begun, calls)


def works_below(agent_id: str, works: Iterable[PastWork]) -> list[PastWork]:
    """The subagents among these that this agent has started, that those have started, and so on."""
    known, found = {agent_id}, list[PastWork]()
    # An agent stands less deep than those that it has started.
    for work in sorted(works, key=lambda each: depth_of(each.agent_id)):
        if work.begun.parent in known:
            known.add(work.agent_id)
            found.append(work)
    return found


def work_name(session_id: str, agent_id: str) -> str:
    """The name of a subagent's work for budgets, the same in each process."""
    return f"{session_id} {agent_id}"


def shared_budgets(
    session_id: str, name: str, records: Iterable[Record | None], works: Sequence[PastWork], model: str
) -> list[Budget]:
    """The budgets that bind the subagents which a turn of a process that is gone has detached: those whose bounds may
    be reached first, with what was spent on record. None if there is no record of such subagents.

    Args:
        session_id: The session.
        name: The name of the turn.
        records: All records of its agent.
        works: The subagents that the turn has started, and those below them.
        model: The id of the agent's model.
    """
    budgets = list[Budget]()
    for mark in _marks(name, records):
        budget = budget_of(mark.share)
        if budget is None:
            continue
        for used in mark.used:
            budget.charge("", model, used)
        for work in works:  # What was spent before then had been taken off.
            calls = [call for call in work.calls if call.at >= mark.at]
            budget.take_over(work_name(session_id, work.agent_id), calls)
        budgets.append(budget)
    # What comes now counts for all of them, so the order in which their bounds are reached stays.
    first = [min(budgets, key=lambda each: each.remaining[bound]) for bound in _BOUNDS] if budgets else []
    return list({id(each): each for each in first}.values())


class _Mark(NamedTuple):
    """The budget of a call at the moment when a turn of it detached a subagent."""

    at: float
    share: object
    """The bounds that remained."""
    used: list[Usage]
    """The calls of the agent itself since then."""


def _marks(name: str, records: Iterable[Record | None]) -> list[_Mark]:
    """The marks of the turn with this name. Turns that tell what it has detached belong to its call."""
    marks, turn = dict[str, _Mark](), 0
    turns = set[int]()
    for record in records:
        if isinstance(record, MessageAdded):
            turn = record.turn
            for mark in marks.values() if turn in turns else ():
                mark.used.extend(usages(record))
        elif isinstance(record, DeferralsChanged):
            for tool in record.deferrals:
                pool = None if tool.run is None else pool_in(tool.run.input)
                if pool is not None and pool[0] == name:
                    turns.add(turn)
                    marks.setdefault(tool.id, _Mark(tool.since, pool[1], []))
            if marks.keys() & set(record.told):
                turns.add(turn)
    return [*marks.values()]


def pool_in(given: object) -> tuple[str, object] | None:
    """The name and the bounds of the budget that a detached subagent shares with others, from the input of its tool."""
    share = cast("Mapping[str, object]", given).get(SHARE) if isinstance(given, Mapping) else None
    pool = cast("Mapping[str, object]", share).get("pool") if isinstance(share, Mapping) else None
    if not isinstance(pool, Mapping):
        return None
    fields = cast("Mapping[str, object]", pool)
    return str(fields.get("name")), fields.get("budget")


def usages(record: MessageAdded) -> list[Usage]:
    """The tokens of the model call whose answer the message is; empty for another one."""
    used = record.message.get("metadata", {}).get("usage")
    return [] if used is None else [used]
