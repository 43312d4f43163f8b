"""A service with a runtime: sessions, streams that readers come back to, and typed answers."""

import anyio
from pydantic import BaseModel

from repertory import AgentSpec, Runtime, ScriptedModel, tool


class Order(BaseModel):
    item: str
    count: int = 1


@tool(effects=False)
def stock(item: str) -> int:
    """Look up how many there are."""
    return 3


async def main() -> None:
    use = {"toolUse": {"name": "Order", "input": {"item": "loaf"}}}
    async with Runtime() as runtime:
        spec = AgentSpec(name="shop", model=ScriptedModel(["Hello.", "Go on.", use]), tools=[stock])
        session = runtime.agent(spec).session("ada")
        offset: str | None = None
        async for event in session.stream("Hi!", token="one", detach=True):
            offset = event.get("offset", offset)
        async for event in session.attach("one"):
            if "result" in event:
                print(event["result"].text, offset is not None)
        async for piece in session.stream_text("Go on."):
            print(piece)
        order = (await session.invoke("A loaf.", structured_output_model=Order)).structured_output
        print(order.item.upper(), order.count + 1)


if __name__ == "__main__":
    anyio.run(main)
