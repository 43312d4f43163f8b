"""A program that needs the text alone."""

import anyio

from repertory import Agent, ScriptedModel


async def main() -> None:
    agent = Agent(ScriptedModel(["Good morning."], chunk=5))
    said = ""
    async for piece in agent.stream_text("Hi!", timeout_s=30):
        said += piece
        print(piece, end="", flush=True)
    print(len(said.split()))


if __name__ == "__main__":
    anyio.run(main)
