"""What a node is told when its turn comes. The wording is that of the SDK whose users we serve. Further lines of what
other nodes have said are indented, so that none of them can pass for a heading, or for the words of somebody else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from repertory.core.messages import ContentBlock, Json
from repertory.core.orchestration.results import NodeResult

_LINE_BREAK = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")

Task: TypeAlias = "str | Sequence[ContentBlock]"
"""What a run is about: text, or content blocks."""


def graph_input(task: Task, before: Mapping[str, NodeResult]) -> list[ContentBlock]:
    """The task, and what the nodes before it said."""
    own: list[ContentBlock] = []
    if isinstance(task, str):
        own.append({"text": task if not before else f"Original Task: {task}"})
    else:
        own.extend(task)
    if not before:
        return own
    told: list[ContentBlock] = []
    if not isinstance(task, str):
        told.append({"text": "Original Task:"})
    told.extend(own)
    told.append({"text": "\nInputs from previous nodes:"})
    for node, result in before.items():
        told.append({"text": f"\nFrom {node}:"})
        told.extend({"text": f"  - Agent: {_quoted(str(said))}"} for said in result.get_agent_results())
    return told


def swarm_input(
    task: Task,
    *,
    handed: str | None,
    history: Sequence[str],
    context: Mapping[str, Mapping[str, Json]],
    others: Mapping[str, str | None],
) -> list[ContentBlock]:
    """The task, and what an agent needs to know of those before it. `others`: the agents that it may hand over to, each
    with its description.
    """
    parts: list[str] = [f"Handoff Message: {_quoted(handed)}\n\n"] if handed else []
    parts.append(f"User Request: {task}\n\n" if isinstance(task, str) else "User Request: Multi-modal task\n\n")
    if history:
        parts.append(f"Previous agents who worked on this: {' → '.join(history)}\n\n")
    known = [f"• {node}: {values}\n" for node, values in context.items() if values]
    if known:
        parts += ["Shared knowledge from previous agents:\n", *known, "\n"]
    if others:
        parts.append("Other agents available for collaboration:\n")
        for node, description in others.items():
            parts.append(f"Agent name: {node}." + (f" Agent description: {description}" if description else "") + "\n")
        parts.append("\n")
    parts.append(
        "You have access to swarm coordination tools if you need help from other agents. "
        "If you don't hand off to another agent, the swarm will consider the task complete."
    )
    told: list[ContentBlock] = [{"text": f"Context:\n{''.join(parts)}\n\n"}]
    told += () if isinstance(task, str) else task
    return told


def _quoted(said: str) -> str:
    return _LINE_BREAK.sub(r"\g<0>    ", said)
