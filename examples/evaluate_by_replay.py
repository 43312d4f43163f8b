"""Would a smaller model have answered as well? Two variants answer a stored session again, side by side.

It runs offline: scripted models stand for real ones. With real ones, write `AnthropicModel()` or `OpenAIModel(...)`.
Stop it at any time and start it again: it goes on where it was. `results.html` shows the answers side by side.
"""

from __future__ import annotations

import anyio

from repertory import (
    Agent,
    ReplayProgress,
    ScoredAnswer,
    ScriptedModel,
    SQLiteSessionManager,
    SQLiteSessions,
    TokenPrice,
    Variant,
    replay,
    tool,
)


@tool
def price(item: str) -> float:
    """Look up what an item costs."""
    return {"loaf": 4.2, "bun": 0.9}[item]


def looks_up(item: str) -> dict[str, object]:
    return {"toolUse": {"name": "price", "input": {"item": item}}}


async def record() -> None:
    """A conversation as production has stored it."""
    model = ScriptedModel([looks_up("loaf"), "A loaf costs 4.20.", looks_up("bun"), "A bun costs 0.90.", "Good bye!"])
    session = SQLiteSessionManager("marta", path="shop.db")
    async with Agent(model, tools=[price], session_manager=session, callback_handler=None) as agent:
        for prompt in ("What does a loaf cost?", "And a bun?", "Bye."):
            await agent.invoke_async(prompt)


def names_the_price(answer: ScoredAnswer) -> bool:
    """Whether every figure of the recorded answer is in the new one."""
    figures = [
        word.rstrip(".") for word in (answer.recorded.text if answer.recorded else "").split() if word[0].isdigit()
    ]
    return all(figure in answer.replayed.text for figure in figures)


def show(progress: ReplayProgress) -> None:
    row = progress.row
    answer = row.replayed.text if row.replayed is not None else row.error
    print(f"{progress.done}/{progress.of} turn {row.turn}, {row.variant}: {answer}")


async def main() -> None:
    await record()
    small = ScriptedModel([looks_up("loaf"), "4.20", looks_up("bun"), "About 1.", "Bye!"])
    large = ScriptedModel([looks_up("loaf"), "It is 4.20 a loaf.", looks_up("bun"), "0.90 each.", "Good bye!"])
    found = await replay(
        SQLiteSessions("shop.db"),
        "marta",
        variant=[Variant(name="small", model=small), Variant(name="large", model=large, system_prompt="Be friendly.")],
        scorers=[names_the_price],
        out="results.jsonl",
        concurrency=1,
        prices={"recorded": TokenPrice(input=3, output=15), "small": TokenPrice(input=0.5, output=2)},
        on_progress=show,
    )
    print(found)
    await found.write_page("results.html")


anyio.run(main)
