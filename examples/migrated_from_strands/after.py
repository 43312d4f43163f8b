"""The desk of a bicycle workshop: knows the parts in stock, books repairs, and remembers each customer.

python PROGRAM marta "Do you have a chain?" "Book my red bike on tuesday, please."
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from rules import events, reply

from repertory import (
    AfterToolCallEvent,
    Agent,
    BedrockModel,
    BeforeToolCallEvent,
    FileSessionManager,
    HookProvider,
    HookRegistry,
    Model,
    SlidingWindowConversationManager,
    ToolContext,
    tool,
)

DATA = Path(os.environ.get("WORKSHOP_DATA", "~/.repertory/examples/migrated_from_strands")).expanduser()
STOCK = {"chain": 12, "brake cable": 3, "saddle": 0}
CLOSED = ("sunday", "monday")


@tool(effects=False)
def parts_in_stock(part: str) -> str:
    """Look up how many of a part are in stock.

    Args:
        part: The name of the part, such as "brake cable".
    """
    if part not in STOCK:
        raise LookupError(f"no such part: {part}")
    return f"There are {STOCK[part]} of {part} in stock."


@tool(context=True)
def book_repair(bike: str, day: str, tool_context: ToolContext) -> str:
    """Book a repair.

    Args:
        bike: Which bike it is.
        day: The day of the week.
    """
    booked = dict(tool_context.agent.state.get("booked") or {})
    booked[bike] = day
    tool_context.agent.state.set("booked", booked)
    return f"The {bike} is booked for {day}."


class OpeningHours(HookProvider):
    """Refuses repairs on days on which the workshop is closed, and writes down what the tools did."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        registry.add_callback(BeforeToolCallEvent, self.refuse)
        registry.add_callback(AfterToolCallEvent, self.note)

    def refuse(self, event: BeforeToolCallEvent) -> None:
        if event.tool_use["name"] == "book_repair" and event.tool_use["input"]["day"] in CLOSED:
            event.cancel_tool = f"The workshop is closed on {event.tool_use['input']['day']}."

    def note(self, event: AfterToolCallEvent) -> None:
        self.log.append(f"{event.tool_use['name']}: {event.result['status']}")


class Rules(Model):
    """The rules of rules.py as a model."""

    def get_config(self) -> dict[str, Any]:
        return {}

    def update_config(self, **config: Any) -> None:
        pass

    async def structured_output(self, *args: Any, **kwargs: Any) -> AsyncGenerator[dict[str, Any], None]:
        raise NotImplementedError
        yield {}

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[dict[str, Any], None]:
        for event in events(reply(messages)):
            yield event


def build_agent(customer: str, hours: OpeningHours) -> Agent:
    """The agent of one customer, which goes on with what was said before."""
    model_id = os.environ.get("WORKSHOP_MODEL")  # the id of a Bedrock model
    return Agent(
        model=BedrockModel(model_id=model_id) if model_id else Rules(),
        tools=[parts_in_stock, book_repair],
        system_prompt="You work at the desk of a bicycle workshop. Answer briefly.",
        session_manager=FileSessionManager(session_id=customer, storage_dir=str(DATA)),
        conversation_manager=SlidingWindowConversationManager(window_size=40),
        hooks=[hours],
    )


def main() -> None:
    """Answer what the command line says, one turn for each argument."""
    customer, *texts = sys.argv[1:] or ["marta", "Do you have a chain?", "Book my red bike on tuesday, please."]
    hours = OpeningHours()
    agent = build_agent(customer, hours)
    for text in texts:
        print(f"{customer}: {text}")
        print(f"desk: {str(agent(text)).strip()}")
    print(f"tools: {', '.join(hours.log)}")
    print(f"booked: {agent.state.get('booked')}; messages: {len(agent.messages)}")


if __name__ == "__main__":
    main()
