"""A program with a helper for answers of any type, and many of them at the same time."""

from dataclasses import dataclass
from typing import TypeVar

import anyio

from repertory import Agent, AgentResult, ScriptedModel

T = TypeVar("T")


@dataclass
class City:
    name: str
    people: int


async def ask(prompt: str, shape: type[T], model: ScriptedModel) -> T:
    result = await Agent(model).invoke_async(prompt, structured_output_model=shape)
    if result.structured_output is None:
        raise ValueError(result.stop_reason)
    answer: T = result.structured_output
    return answer


def largest(results: list[AgentResult[City]]) -> str:
    return max(results, key=lambda result: result.structured_output.people).structured_output.name


async def main() -> None:
    names = {"Ulm": 128_000, "Kiel": 247_000}
    found: list[City] = []

    async def one(name: str, people: int) -> None:
        use = {"toolUse": {"name": "City", "input": {"name": name, "people": people}}}
        found.append(await ask(f"How many people live in {name}?", City, ScriptedModel([use])))

    async with anyio.create_task_group() as group:
        for name, people in names.items():
            group.start_soon(one, name, people)
    print(sum(city.people for city in found))
    print(largest([AgentResult("end_turn", None, structured_output=city) for city in found]))


if __name__ == "__main__":
    anyio.run(main)
