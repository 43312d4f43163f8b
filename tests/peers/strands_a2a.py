"""The released package as an A2A peer: `serve` an agent and print its address, or `ask` the one at an address."""

from __future__ import annotations

import json
import socket
import sys
from typing import Any


def serve() -> None:
    import uvicorn
    from strands import Agent
    from strands.models import Model
    from strands.multiagent.a2a import A2AServer

    class Counting(Model):
        """Says how many messages it was shown, and the last one's text."""

        def update_config(self, **config: Any) -> None:
            pass

        def get_config(self) -> dict[str, Any]:
            return {}

        async def structured_output(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError
            yield

        async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            yield {"messageStart": {"role": "assistant"}}
            for text in (f"{len(messages)} ", messages[-1]["content"][0]["text"]):
                yield {"contentBlockDelta": {"delta": {"text": text}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}

    def made(context_id: str) -> Any:
        return Agent(model=Counting(), name="counter", description="Counts messages.", callback_handler=None)

    bound = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    app = A2AServer(agent_factory=made, http_url=url).to_starlette_app()
    print(url, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[bound])


def ask(url: str, *prompts: str) -> None:
    from strands.agent.a2a_agent import A2AAgent

    agent = A2AAgent(url)
    for prompt in prompts:
        result = agent(prompt)
        print(json.dumps({"message": result.message, "state": result.state.get("a2a_task_state"), "of": agent.name}))


if __name__ == "__main__":
    serve() if sys.argv[1] == "serve" else ask(*sys.argv[2:])
