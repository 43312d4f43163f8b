"""Graphs and swarms of strands-agents, run line by line: by an interpreter that has the released package.

Each line of standard input is a JSON command that opens an orchestrator in a session and gives it a task; each line of
standard output says what became of it. The models are scripted, so that nothing but the orchestration and the sessions
is the package's own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any


def main() -> None:
    from strands.models import Model

    class Scripted(Model):
        """Answers with what it was given, in order. A reply of None fails, one of False ends the process."""

        def __init__(self, replies: list[Any]) -> None:
            self.replies = replies
            self.asked: list[Any] = []

        def update_config(self, **config: Any) -> None:
            pass

        def get_config(self) -> dict[str, Any]:
            return {}

        async def structured_output(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError
            yield

        async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            self.asked.append(json.loads(json.dumps(messages[-1], default=repr)))
            reply = self.replies.pop(0)
            if reply is False:
                os._exit(9)
            if reply is None:
                raise RuntimeError("the model is down")
            yield {"messageStart": {"role": "assistant"}}
            for block in reply:
                if "toolUse" in block:
                    use = block["toolUse"]
                    start = {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"]}}
                    yield {"contentBlockStart": {"start": start}}
                    yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(use["input"])}}}}
                else:
                    yield {"contentBlockStart": {"start": {}}}
                    yield {"contentBlockDelta": {"delta": {"text": block["text"]}}}
                yield {"contentBlockStop": {}}
            yield {
                "messageStop": {"stopReason": "tool_use" if any("toolUse" in each for each in reply) else "end_turn"}
            }
            usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
            yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}

    for line in sys.stdin:
        command = json.loads(line)
        models = {name: Scripted(replies) for name, replies in command["nodes"].items()}
        answer: dict[str, Any] = {}
        try:
            made = _swarm(command, models) if command["kind"] == "swarm" else _graph(command, models)
            answer["found"] = made.serialize_state()
            if command.get("task") is not None:
                result = asyncio.run(made.invoke_async(command["task"]))
                answer |= {"status": result.status.value, "results": {k: str(v) for k, v in result.results.items()}}
                answer["interrupts"] = [interrupt.to_dict() for interrupt in result.interrupts]
        except Exception as error:  # noqa: BLE001 - whatever the package raises is the answer
            answer["error"] = f"{type(error).__name__}: {error}"
        answer["asked"] = {name: model.asked for name, model in models.items() if model.asked}
        print(json.dumps(answer, default=repr), flush=True)


def _graph(command: dict[str, Any], models: dict[str, Any]) -> Any:
    from strands import Agent
    from strands.multiagent import GraphBuilder

    builder = GraphBuilder()
    for name, model in models.items():
        builder.add_node(Agent(model, name=name, tools=[_paying()], callback_handler=None), name)
    for source, target in command["edges"]:
        builder.add_edge(source, target)
    builder.set_graph_id(command.get("id", "default_graph")).set_execution_timeout(60)
    builder.set_hook_providers([_Gate(command.get("gated", ()))])
    return builder.set_session_manager(_session(command)).build()


def _swarm(command: dict[str, Any], models: dict[str, Any]) -> Any:
    from strands import Agent
    from strands.multiagent import Swarm

    agents = [Agent(model, name=name, tools=[_paying()], callback_handler=None) for name, model in models.items()]
    gate = _Gate(command.get("gated", ()))
    return Swarm(agents, id=command.get("id", "default_swarm"), session_manager=_session(command), hooks=[gate])


def _paying() -> Any:
    """A tool that asks a person before it pays."""
    from strands import ToolContext, tool

    def pay(amount: int, tool_context: Any) -> str:
        """Pay an amount, when a person agrees."""
        return f"paid {amount}: {tool_context.interrupt('approve', reason={'amount': amount})}"

    pay.__annotations__["tool_context"] = ToolContext
    return tool(context=True)(pay)


class _Gate:
    """A person is asked before some nodes begin."""

    def __init__(self, nodes: Any) -> None:
        self.nodes = nodes

    def register_hooks(self, registry: Any, **_: Any) -> None:
        from strands.hooks import BeforeNodeCallEvent

        registry.add_callback(BeforeNodeCallEvent, self.ask)

    def ask(self, event: Any) -> None:
        if event.node_id in self.nodes and event.interrupt("begin", reason=event.node_id) != "yes":
            event.cancel_node = "not allowed"


def _session(command: dict[str, Any]) -> Any:
    if command.get("snapshots"):
        return _snapshot_session(command)
    if command.get("endpoint"):
        from strands.session.s3_session_manager import S3SessionManager

        return S3SessionManager(
            command["session"],
            command["bucket"],
            prefix=command.get("prefix", ""),
            endpoint_url=command["endpoint"],
            region_name="us-east-1",
        )
    from strands.session.file_session_manager import FileSessionManager

    return FileSessionManager(command["session"], command["folder"])


def _snapshot_session(command: dict[str, Any]) -> Any:
    """In a bucket below `session/`, in a folder below a namespace."""
    from strands.session.snapshot_session_manager import SnapshotSessionManager
    from strands.storage.local_file_storage import LocalFileStorage
    from strands.storage.s3_storage import S3Storage

    if command.get("endpoint"):
        os.environ["AWS_ENDPOINT_URL_S3"] = command["endpoint"]
        storage: Any = S3Storage(command["bucket"], prefix=command["prefix"], region_name="us-east-1")
    else:
        storage = LocalFileStorage(command["folder"]).namespace(command["snapshots"])
    return SnapshotSessionManager(command["session"], storage=storage)


if __name__ == "__main__":
    main()
