"""An assistant for the command line. Its tools come from an MCP server, its conversations survive the process.

    python -m examples.cli_assistant_mcp Save a note called shopping: flour and salt   # one question
    python -m examples.cli_assistant_mcp --session work                                # a conversation
    some-program | python -m examples.cli_assistant_mcp                                # a question from each line

Ctrl-C stops an answer, and an empty line continues it, also in a process started later. Ctrl-D ends the program.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repertory import Agent, AgentResult, MCPClient, Message, RepertoryError, SQLiteSessionManager, named_model

SERVER = Path(__file__).with_name("notes_server.py")
SYSTEM_PROMPT = """You are an assistant in a terminal. Answer in plain text and briefly.
Keep what the user wants to keep in notes. Look into the notes before you say that you do not know."""


@dataclass(frozen=True)
class Settings:
    """What the environment says."""

    model: str = "offline"
    """`REPERTORY_MODEL`: `anthropic`, `openai:gpt-5.4`, `bedrock`, the id of a Bedrock model, or `offline`."""
    data: Path = Path("~/.repertory/examples/cli_assistant_mcp")
    """`ASSISTANT_DATA`: the folder of the conversations and the notes."""
    model_calls_max: int = 20
    """`ASSISTANT_MODEL_CALLS`: how often one question may ask the model."""

    @staticmethod
    def read(environ: Mapping[str, str]) -> Settings:
        """The settings of an environment; what is not set has its default."""
        return Settings(
            model=environ.get("REPERTORY_MODEL") or Settings.model,
            data=Path(environ.get("ASSISTANT_DATA") or Settings.data).expanduser(),
            model_calls_max=int(environ.get("ASSISTANT_MODEL_CALLS") or Settings.model_calls_max),
        )


def build_agent(settings: Settings, session: str) -> Agent:
    """The agent of one conversation. Nothing is connected or started before its first call."""
    notes = MCPClient.stdio(sys.executable, [str(SERVER), str(settings.data / "notes")], name="notes")
    return Agent(
        named_model(settings.model),
        name="assistant",
        tools=[notes],
        system_prompt=SYSTEM_PROMPT,
        session_manager=SQLiteSessionManager(session, path=settings.data / "sessions.db"),
        limits={"turns": settings.model_calls_max},
        callback_handler=show,
    )


def show(**event: Any) -> None:
    """Print the answer as it comes, and one line for each tool."""
    match event:
        case {"data": str(text)}:
            print(text, end="", flush=True)
        case {"tool_started": {"name": name, "input": arguments}}:
            print(f"[{name} {arguments}]", file=sys.stderr)
        case {"model_retry": {"delay_s": delay_s}}:
            print(f"\n[the model does not answer; asked again in {delay_s:.0f} s]", file=sys.stderr)
        case _:
            pass


class Conversation:
    """One conversation between a person and the agent."""

    def __init__(self, agent: Agent, *, interactive: bool) -> None:
        self._agent = agent
        self._interactive = interactive

    @property
    def unanswered(self) -> bool:
        """Whether the last turn was cut off, in this process or an earlier one."""
        messages = self._agent.messages
        return bool(messages) and (messages[-1]["role"] == "user" or self._asks_for_tools(messages[-1]))

    def say(self, text: str | None) -> bool:
        """Run one turn to its end, or go on with the one that was cut off (None). Returns whether it was answered."""
        try:
            result = self._agent(text)
            while result.stop_reason == "interrupt":
                answers = self._decide(result)
                if answers is None:
                    return False
                result = self._agent(answers)
        except KeyboardInterrupt:
            print("\n[stopped; an empty line continues]", file=sys.stderr)
            return False
        except RepertoryError as error:
            print(f"\n[{type(error).__name__}: {error}]", file=sys.stderr)
            return False
        print(flush=True)
        if result.stop_reason != "end_turn":
            print(f"[ended early: {result.stop_reason}]", file=sys.stderr)
        return result.stop_reason == "end_turn"

    def _decide(self, result: AgentResult) -> list[dict[str, object]] | None:
        """What a person says about tools of which nobody knows whether they took effect; None without a person."""
        answers: list[dict[str, object]] = []
        for interrupt in result.interrupts:
            print(f"[{interrupt.reason}]", file=sys.stderr)
            if not self._interactive:
                print("[start the program in a terminal to decide: retry, or fail]", file=sys.stderr)
                return None
            chosen = ""
            while chosen not in {"retry", "fail"}:
                chosen = input("retry or fail? ").strip()
            answers.append({"interruptResponse": {"interruptId": interrupt.id, "response": chosen}})
        return answers

    @staticmethod
    def _asks_for_tools(message: Message) -> bool:
        return any("toolUse" in block for block in message["content"])

    def lines(self) -> Iterator[str]:
        """What the person types, until the end of the input."""
        while True:
            try:
                yield input("> " if self._interactive else "").strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                if not self._interactive:
                    return
                print("\n[Ctrl-D ends]", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 1 when a question has no answer."""
    parser = argparse.ArgumentParser(prog="assistant", description="An assistant that keeps your notes.")
    parser.add_argument("--session", default="main", help="the name of the conversation (default: main)")
    parser.add_argument("question", nargs="*", help="asked once; without it, questions are read from the input")
    options = parser.parse_args(arguments)
    question = " ".join(options.question)
    interactive = sys.stdin.isatty() and not question
    answered = True
    try:
        agent = build_agent(Settings.read(os.environ), options.session)
    except (ImportError, ValueError, RepertoryError) as error:
        parser.error(str(error))
    with agent:
        conversation = Conversation(agent, interactive=interactive)
        if conversation.unanswered:
            print("[the last question has no answer yet; an empty line continues]", file=sys.stderr)
        for line in [question] if question else conversation.lines():
            if line or conversation.unanswered:
                answered = conversation.say(line or None) and answered
    return 0 if answered or interactive else 1
