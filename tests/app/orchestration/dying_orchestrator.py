"""A process that is killed in the middle of a run: the second node's model does it, once the first one's end is stored.

python -m tests.app.orchestration.dying_orchestrator graph|swarm FOLDER TASK [snapshots]
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio

from repertory import Agent, FileSessionManager, FileStorage, Graph, ScriptedModel, SessionManager, Swarm


class DyingModel(ScriptedModel):
    """Never answers."""

    def __init__(self, folder: str) -> None:
        super().__init__([])
        self._folder = Path(folder)

    async def stream(self, *args: Any, **options: Any) -> AsyncGenerator[Any]:
        del args, options
        while True:
            await anyio.sleep(0.01)
            documents = [*self._folder.rglob("multi_agent.json"), *self._folder.glob("s/scopes/multiAgent/**/*.json")]
            if any("A ours" in path.read_text() for path in documents):
                os.kill(os.getpid(), signal.SIGKILL)
        yield


def main() -> None:
    kind, folder, task, *layout = sys.argv[1:]
    told = {"agent_name": "b", "message": "over to you", "context": {"found": 7}}
    handing: list[Any] = [{"toolUse": {"name": "handoff_to_agent", "input": told}}, "A ours"]
    models = {"a": ScriptedModel(handing if kind == "swarm" else ["A ours"]), "b": DyingModel(folder)}
    nodes = {name: Agent(model, name=name, callback_handler=None) for name, model in models.items()}
    manager = SessionManager("s", storage=FileStorage(folder)) if layout else FileSessionManager("s", folder)
    if kind == "swarm":
        Swarm([*nodes.values()], session_manager=manager)(task)
    else:
        Graph(nodes, session_manager=manager)(task)


if __name__ == "__main__":
    main()
