"""A program whose hooks ask and refuse."""

from repertory import Agent, BeforeToolCallEvent, HookRegistry, MessageAddedEvent, ScriptedModel, tool


@tool
def wipe(disk: str) -> str:
    """Wipe a disk."""
    return f"wiped {disk}"


class Guard:
    """Asks before each tool, and counts messages."""

    def __init__(self) -> None:
        self.messages = 0

    def register_hooks(self, registry: HookRegistry) -> None:
        registry.add_callback(BeforeToolCallEvent, self.ask)
        registry.add_callback(MessageAddedEvent, self.count)

    def ask(self, event: BeforeToolCallEvent) -> None:
        allowed = event.interrupt("allow", reason=event.tool_use["name"], response_model=bool)
        if not allowed:
            event.cancel_tool = "A person has refused it."

    def count(self, event: MessageAddedEvent) -> None:
        self.messages += 1 if event.message["content"] else 0


def main() -> None:
    guard = Guard()
    model = ScriptedModel([{"toolUse": {"name": "wipe", "input": {"disk": "sda"}}}, "I may not."])
    agent = Agent(model, tools=[wipe], hooks=[guard])
    asked = agent("Wipe sda.").interrupts[0]
    print(agent([{"interruptResponse": {"interruptId": asked.id, "response": "no"}}]), guard.messages)


if __name__ == "__main__":
    main()
