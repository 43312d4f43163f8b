"""A program with callback handlers of its own."""

from typing import Any

from repertory import Agent, ScriptedModel


def show(data: str = "", **event: Any) -> None:
    print(data, end="")
    if "result" in event:
        print()


class Counter:
    def __init__(self) -> None:
        self.pieces: list[str] = []

    async def __call__(self, **event: Any) -> None:
        if piece := event.get("data"):
            self.pieces.append(piece)


def main() -> None:
    counter = Counter()
    Agent(ScriptedModel(["One."]), callback_handler=show)("Count.")
    agent = Agent(ScriptedModel(["One two.", "Three."], chunk=3), callback_handler=counter)
    print(agent("Count."), agent("Go on.").text, len(counter.pieces))


if __name__ == "__main__":
    main()
