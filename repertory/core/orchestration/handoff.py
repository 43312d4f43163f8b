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
    """What an agent leaves for others, and to whom it hands over with which words. The last time counts; handing over
    to somebody who is not there, or that was not carried out, counts for nothing.

    `messages`: everything said in one execution of the agent, whatever its model is shown.
    """
    context: dict[str, Json] = {}
    handed: tuple[str, str] | None = None
    for message, following in zip(messages, [*messages[1:], None], strict=False):
        results = () if following is None else tool_results(following)
        done = {result["toolUseId"] for result in results if result.get("status") == "success"}
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
