"""What an agent of a swarm has handed over, read from what it said: so it is known after a crash as well."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from repertory.core.messages import tool_results, tool_uses

if TYPE_CHECKING:
    from repertory.core.messages import Json, Message

HANDOFF = "handoff_to_agent"
"""The name of the tool."""


def handoff_in(
    messages: Sequence[Message], agents: Collection[str]
) -> tuple[Mapping[str, Json], tuple[str, str] | None]:
    """What the last turn leaves for others, and to whom it hands over with which words: the last one that it said
    counts. Handing over to somebody who is not there, or that was not carried out, counts for nothing.
    """
    turn = messages[_begin(messages) :]
    done = {result["toolUseId"] for each in turn for result in tool_results(each) if result["status"] == "success"}
    context: dict[str, Json] = {}
    handed: tuple[str, str] | None = None
    for message in turn:
        for use in tool_uses(message):
            match use["input"]:
                case {"agent_name": str(name), "message": str(words), **rest} if (
                    use["name"] == HANDOFF and use["toolUseId"] in done and name in agents
                ):
                    handed = name, words
                    left = rest.get("context")
                    context |= left if isinstance(left, dict) else {}
                case _:
                    pass
    return context, handed


def _begin(messages: Sequence[Message]) -> int:
    """Where the last turn begins: at the last thing that was said to the agent."""
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if message["role"] == "user" and not any(tool_results(message)):
            return place
    return 0
