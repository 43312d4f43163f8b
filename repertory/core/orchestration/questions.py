"""What the nodes of a run ask: by ids that say which node it is, since two nodes may use the same ones.

v1:before_node_call:NODE:NAME   a hook of the orchestrator asks before a node; NODE and NAME are digests
v1:node:NODE:ID                 the node asks, and calls the question ID; a nested orchestrator by ids like these
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from repertory.core.interrupts import is_about_node, node_scope
from repertory.core.orchestration.results import MultiAgentResult

if TYPE_CHECKING:
    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import Json
    from repertory.core.orchestration.results import NodeResult
    from repertory.core.orchestration.run import Run


def questions_of(node: str, result: NodeResult) -> tuple[Interrupt, ...]:
    """What a node that ended with this asks, or a hook before it, answered or not."""
    return tuple(
        one if _hook_asks(one.id, result) else replace(one, id=f"{_prefix(node)}{one.id}") for one in result.interrupts
    )


def asked_by_hook(result: NodeResult) -> bool:
    """Whether a hook asked before the node, which has not begun."""
    return any(_hook_asks(one.id, result) for one in result.interrupts)


def own_id(node: str, interrupt_id: str) -> str | None:
    """What the node itself calls the question; None when a hook asked it."""
    prefix = _prefix(node)
    return interrupt_id.removeprefix(prefix) if interrupt_id.startswith(prefix) else None


def answers_about(node: str, run: Run) -> dict[str, Json]:
    """What was answered of that which the node asked last, by the ids that it uses itself."""
    note = run.notes.get(node)
    found: dict[str, Json] = {}
    for question in () if note is None else questions_of(node, note.result):
        own = own_id(node, question.id)
        if own is not None and question.id in run.responses:
            found[own] = run.responses[question.id]
    return found


def still_answered(node: str, run: Run, *, done: bool, asks: Collection[Interrupt]) -> dict[str, Json]:
    """The answers that count after the node has ended once more: not those about work that is `done`, and not those to
    what it `asks` again.
    """
    if not run.responses:
        return {}
    mine = (_prefix(node), f"{node_scope(node)}:")
    again = {one.id for one in asks}
    return {
        key: response
        for key, response in run.responses.items()
        if key not in again and not (done and key.startswith(mine))
    }


def _prefix(node: str) -> str:
    return f"v1:node:{quote(node, safe='')}:"


def _hook_asks(interrupt_id: str, result: NodeResult) -> bool:
    """Of a nested orchestrator, it may be a hook of that."""
    return is_about_node(interrupt_id) and not isinstance(result.result, MultiAgentResult)
