"""An agent as one line for a console, and as Markdown for a notebook. Loaded when one is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repertory.backends.ports import settings_of
from repertory.core.notebook import cell, short_repr, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repertory.backends.ports import Model
    from repertory.core.messages import Message


class ShownAgent:
    """The public face of an agent: names and counts, none of its prompts, messages or state."""

    def __init__(self, agent: Any, messages: Sequence[Message] | None) -> None:
        """`messages`: None of a session that is not open, since a `repr` reads nothing."""
        self._agent = agent
        self._messages = messages

    def line(self) -> str:
        """The agent on one line, for `repr`."""
        agent = self._agent
        fields: dict[str, object] = {
            "agent_id": agent.agent_id,
            "name": agent.name,
            "model": model_named(agent.model),
            "session_id": agent.session_id,
            "tools": len(agent.tool_registry.now.names),
            "messages": None if self._messages is None else len(self._messages),
        }
        return short_repr(agent, fields)

    def markdown(self) -> str:
        """A table for a notebook."""
        agent = self._agent
        rows = [
            ("agent", f"{cell(agent.name)} ({cell(agent.agent_id)})"),
            ("model", cell(model_named(agent.model))),
            ("session", "not stored" if agent.session_id is None else cell(agent.session_id)),
            ("messages", "not open yet" if self._messages is None else str(len(self._messages))),
            ("tools", ", ".join(map(cell, agent.tool_registry.now.names)) or "none"),
        ]
        return table(("", ""), rows)


def model_named(model: Model | str | None) -> str | None:
    """A model's kind and id."""
    if model is None or isinstance(model, str):
        return model
    model_id = settings_of(model).get("model_id")
    return f"{type(model).__name__} {model_id}" if isinstance(model_id, str) else type(model).__name__
