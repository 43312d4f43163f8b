"""A session manager of strands-agents, driven line by line: run by an interpreter that has the released package.

Each line of standard input is a JSON command, each line of standard output its answer. The model is scripted, so that
nothing but the sessions is the package's own.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from typing import Any


def main() -> None:
    from strands import Agent, ToolContext, tool
    from strands.agent.conversation_manager import NullConversationManager, SlidingWindowConversationManager
    from strands.hooks import BeforeToolCallEvent
    from strands.models import Model
    from strands.session.file_session_manager import FileSessionManager

    class Scripted(Model):
        """Answers with what it was given, in order."""

        def __init__(self) -> None:
            self.replies: list[list[dict[str, Any]]] = []
            self.asked: list[Any] = []

        def update_config(self, **config: Any) -> None:
            pass

        def get_config(self) -> dict[str, Any]:
            return {}

        async def structured_output(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError
            yield

        async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            self.asked.append(json.loads(json.dumps(messages, default=repr)))
            reply = self.replies.pop(0)
            yield {"messageStart": {"role": "assistant"}}
            for block in reply:
                if "redact" in block:
                    yield {"redactContent": {"redactUserContentMessage": block["redact"]}}
                    continue
                if "toolUse" in block:
                    use = block["toolUse"]
                    start = {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"]}}
                    yield {"contentBlockStart": {"start": start}}
                    yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(use["input"])}}}}
                else:
                    yield {"contentBlockStart": {"start": {}}}
                    yield {"contentBlockDelta": {"delta": {"text": block["text"]}}}
                yield {"contentBlockStop": {}}
            wants = any("toolUse" in block for block in reply)
            yield {"messageStop": {"stopReason": "tool_use" if wants else "end_turn"}}
            usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
            yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}

    @tool
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    # The package reads this annotation where it cannot see the names of a function.
    def pay(amount: int, tool_context: Any) -> str:
        """Pay an amount, when a person agrees."""
        return f"paid {amount}: {tool_context.interrupt('approve', reason={'amount': amount})}"

    pay.__annotations__["tool_context"] = ToolContext
    paying = tool(context=True)(pay)

    @tool
    def wipe(disk: str) -> str:
        """Wipe a disk."""
        return f"wiped {disk}"

    def gate(event: BeforeToolCallEvent) -> None:
        if event.tool_use["name"] == "wipe" and event.interrupt("wipe", reason=event.tool_use["input"]) != "yes":
            event.cancel_tool = "not allowed"

    agents: dict[str, tuple[Any, Scripted]] = {}
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if command["do"] == "open":
                model = Scripted()
                window = command.get("window")
                manager = SlidingWindowConversationManager(window_size=window) if window else None
                if command.get("manager") == "null":
                    manager = NullConversationManager()
                if command.get("memory"):
                    session: Any = _memory_session(command)
                elif command.get("snapshots"):
                    session = _snapshot_session(command)
                elif command.get("endpoint"):
                    from strands.session.s3_session_manager import S3SessionManager

                    session = S3SessionManager(
                        command["session"],
                        command["bucket"],
                        prefix=command.get("prefix", ""),
                        endpoint_url=command["endpoint"],
                        region_name="us-east-1",
                    )
                else:
                    session = FileSessionManager(command["session"], command["folder"])
                agent = Agent(
                    model,
                    tools=[add, paying, wipe],
                    callback_handler=None,
                    session_manager=session,
                    agent_id=command.get("agent", "default"),
                    **({"conversation_manager": manager} if manager else {}),
                )
                agent.hooks.add_callback(BeforeToolCallEvent, gate)
                agents["it"] = agent, model
                answer: Any = {"messages": agent.messages, "state": agent.state.get()}
            elif command["do"] == "say":
                agent, model = agents["it"]
                model.replies = command["replies"]
                for key, value in command.get("state", {}).items():
                    agent.state.set(key, value)
                prompt = command["prompt"]
                if isinstance(prompt, list):
                    prompt = [_with_bytes(block) for block in prompt]
                said = agent(prompt)
                interrupts = [interrupt.to_dict() for interrupt in said.interrupts or ()]
                asked = model.asked[-1] if model.asked else None
                answer = {"messages": agent.messages, "asked": asked, "interrupts": interrupts}
            elif command["do"] == "redact":
                agent, _ = agents["it"]
                instead = {"role": "assistant", "content": [{"text": command["text"]}]}
                agent._session_manager.redact_latest_message(instead, agent)
                answer = {}
            elif command["do"] == "format":
                agent, _ = agents["it"]
                answer = _formatted(agent.messages, command["packages"])
            elif command["do"] == "snapshot":
                agent, _ = agents["it"]
                answer = {"id": asyncio.run(agent._session_manager.save_snapshot(agent, is_latest=False))}
            elif command["do"] == "restore":
                agent, _ = agents["it"]
                found = asyncio.run(agent._session_manager.restore_snapshot(agent, snapshot_id=command["id"]))
                answer = {"found": found, "messages": agent.messages}
            else:
                answer = {"error": f"no such command: {command['do']}"}
        except Exception as error:  # noqa: BLE001 - whatever the package raises is the answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer, default=_as_text), flush=True)


def _formatted(messages: Any, packages: str) -> dict[str, Any]:
    """The messages as the package's models send them. `packages`: a folder with the providers' packages, which the
    models import.
    """
    if packages not in sys.path:
        sys.path.append(packages)
    from strands.models.anthropic import AnthropicModel
    from strands.models.bedrock import BedrockModel
    from strands.models.openai import OpenAIModel

    anthropic = AnthropicModel.__new__(AnthropicModel)
    anthropic.config = {"model_id": "claude", "max_tokens": 1}
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    return {
        "bedrock": BedrockModel(model_id="us.anthropic.claude-sonnet-4-6")._format_bedrock_messages(messages),
        "anthropic": anthropic._format_request_messages(messages),
        "openai": OpenAIModel.format_request_messages(messages),
    }


def _snapshot_session(command: dict[str, Any]) -> Any:
    """The session manager that keeps snapshots: in a bucket below `session/`, in a folder below a namespace."""
    from strands.session.snapshot_session_manager import SnapshotSessionManager
    from strands.storage.local_file_storage import LocalFileStorage
    from strands.storage.s3_storage import S3Storage

    if command.get("endpoint"):
        os.environ["AWS_ENDPOINT_URL_S3"] = command["endpoint"]
        storage: Any = S3Storage(command["bucket"], prefix=command["prefix"], region_name="us-east-1")
    else:
        storage = LocalFileStorage(command["folder"]).namespace(command["snapshots"])
    return SnapshotSessionManager(command["session"], storage=storage, save_latest_on=command.get("save", "message"))


def _memory_session(command: dict[str, Any]) -> Any:
    """The session manager of bedrock-agentcore."""
    from bedrock_agentcore.memory.integrations.strands.config import AgentCoreMemoryConfig
    from bedrock_agentcore.memory.integrations.strands.session_manager import AgentCoreMemorySessionManager

    os.environ["AWS_ENDPOINT_URL_BEDROCK_AGENTCORE"] = command["endpoint"]
    config = AgentCoreMemoryConfig(
        memory_id=command["memory"],
        session_id=command["session"],
        actor_id=command["actor"],
        batch_size=command.get("batch", 1),
    )
    return AgentCoreMemorySessionManager(config, region_name="us-east-1")


def _with_bytes(block: Any) -> Any:
    if isinstance(block, dict):
        if "base64" in block:
            return base64.b64decode(block["base64"])
        return {key: _with_bytes(value) for key, value in block.items()}
    return [_with_bytes(item) for item in block] if isinstance(block, list) else block


def _as_text(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else repr(value)


if __name__ == "__main__":
    main()
