"""A program with memory across conversations, and a store of its own."""

from collections.abc import Sequence

import anyio

from repertory import Agent, MemoryEntry, MemoryManager, ScriptedModel, SearchOptions


class Notes:
    name = "notes"
    description = "What was noted."
    writable = False
    max_search_results = 3
    extraction = None

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts

    async def search(self, query: str, options: SearchOptions | None = None) -> list[MemoryEntry]:
        words = set(query.lower().split())
        return [MemoryEntry(content=text) for text in self.texts if words & set(text.lower().split())]


async def main() -> None:
    memory = MemoryManager([Notes(["Ada likes nuts.", "Ben has a cat."])])
    async with Agent(ScriptedModel(["Nuts."]), memory_manager=memory) as agent:
        print(await agent.invoke_async("What does Ada like?"))
        print([entry.content for entry in await memory.search("ada")])


if __name__ == "__main__":
    anyio.run(main)
