"""A program whose conversations are stored."""

import tempfile
from pathlib import Path

import anyio

from repertory import Agent, FileSessionManager, ScriptedModel, SQLiteSessionManager


def agent_of(user: str, folder: Path) -> Agent:
    session = SQLiteSessionManager(user, path=folder / "shop.db")
    return Agent(ScriptedModel(["Hello."], loop=True), session_manager=session)


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with agent_of("ada", folder) as agent:
            result = await agent.invoke_async("Hi!", idempotency_token="first")
            again = await agent.invoke_async("Hi!", idempotency_token="first")
            print(result.text == again.text, again.replayed, len(await agent.history()))
            agent.state.set("visits", 1)
        files = FileSessionManager("ben", storage_dir=str(folder))
        async with Agent(ScriptedModel(["Hi."]), session_manager=files) as other:
            await other.invoke_async("Hi!")
            print(other.session_id, [message["role"] for message in other.messages])


if __name__ == "__main__":
    anyio.run(main)
