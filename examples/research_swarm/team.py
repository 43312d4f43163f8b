"""The team, and the runtime that keeps its runs.

A question is a run of a swarm in a session of its own. After a kill any process with this program goes on with the run:
at its start by itself, or when somebody asks the question again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from repertory import (
    Agent,
    HostedOrchestrator,
    Message,
    Model,
    Runtime,
    ScriptedModel,
    SQLiteSessions,
    Swarm,
    SwarmResult,
    named_model,
    tool,
)

TEAM = "research"
LIBRARY = Path(__file__).with_name("library")
ROLES: Mapping[str, tuple[str, str]] = {
    "planner": (
        "Splits a question into searches.",
        "Name the two or three words to search for, and hand over to the researcher with them.",
    ),
    "researcher": (
        "Searches the library.",
        "Search the library for each word. Hand over to the writer, with what you found in the context.",
    ),
    "writer": (
        "Writes the report.",
        "Write at most ten sentences from what was found, and say in which file it stands. Save the report, and "
        "answer with it. If something is missing, hand over to the researcher once.",
    ),
}
"""By name: a description for the others, and what the agent is told to do."""


@dataclass(frozen=True)
class Settings:
    """What the environment says."""

    data: Path = Path("research_swarm_data")
    """`RESEARCH_SWARM_DATA`: the folder of the sessions and of the reports."""
    library: Path = LIBRARY
    """`RESEARCH_SWARM_LIBRARY`: the folder of text files that is searched."""
    model: str = ""
    """`REPERTORY_MODEL`: `anthropic`, `openai:gpt-5.4`, a Bedrock id, and so on. Empty: rules, without an account."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Settings:
        """Read them."""
        return cls(
            Path(environ.get("RESEARCH_SWARM_DATA", cls.data)),
            Path(environ.get("RESEARCH_SWARM_LIBRARY", cls.library)),
            environ.get("REPERTORY_MODEL", cls.model),
        )


def session_of(question: str) -> str:
    """The session of a question: the same words are the same session."""
    words = "-".join(re.findall(r"\w+", question.lower()))[:40]
    return f"{words}-{blake2b(question.encode(), digest_size=4).hexdigest()}"


def research(settings: Settings) -> tuple[Runtime, HostedOrchestrator[SwarmResult]]:
    """The runtime, and the teams of its sessions."""
    settings.data.mkdir(parents=True, exist_ok=True)
    runtime = Runtime(sessions=SQLiteSessions(settings.data / "research.db"), drain_timeout_s=20)
    return runtime, runtime.orchestrator(TEAM, lambda session_id: team(settings, session_id))


def team(settings: Settings, session_id: str) -> Swarm:
    """The swarm of one session, of agents of its own."""

    @tool(effects=False)
    def search_library(word: str) -> str:
        """Find the lines of the library that have a word."""
        found = [
            f"{line} ({path.name})"
            for path in sorted(settings.library.glob("*.txt"))
            for line in path.read_text(encoding="utf-8").splitlines()
            if word.lower() in line.lower()
        ]
        return "\n".join(found) or f"Nothing is known of {word}."

    @tool(idempotent=True)  # a second try after a kill writes the same file
    def save_report(text: str) -> str:
        """Save the report."""
        reports = settings.data / "reports"
        reports.mkdir(exist_ok=True)
        (reports / f"{session_id}.txt").write_text(text + "\n", encoding="utf-8")
        return text

    real: Model | None = named_model(settings.model) if settings.model else None
    tools: Mapping[str, Sequence[object]] = {"researcher": [search_library], "writer": [save_report]}
    agents = [
        Agent(
            real or ScriptedModel([RULES[name]], loop=True),
            name=name,
            description=description,
            system_prompt=prompt,
            tools=tools.get(name, []),
        )
        for name, (description, prompt) in ROLES.items()
    ]
    return Swarm(agents, id=TEAM, max_handoffs=6, execution_timeout=600, node_timeout=200)


# Rules that stand in for a model, so that everything else can be tried without an account.


def plan(said: str, results: Sequence[str]) -> Any:
    """Search for the long words of the question."""
    if results:
        return "The researcher searches."
    question = re.findall(r"User Request: (.+)", said)[0]
    words = [word.rstrip("s") for word in re.findall(r"\w+", question) if len(word) > 4]
    return _hand_over("researcher", "Search for: " + ", ".join(words[:3]))


def search(said: str, results: Sequence[str]) -> Any:
    """Search for each word, then hand everything over."""
    if any("Handing off" in result for result in results):
        return "The writer writes."
    if results:
        return _hand_over("writer", " | ".join(dict.fromkeys("\n".join(results).splitlines())))
    asked = re.findall(r"Search for: (.+)", said)
    return [{"toolUse": {"name": "search_library", "input": {"word": word}}} for word in asked[0].split(", ")]


def write(said: str, results: Sequence[str]) -> Any:
    """Save what was found, line by line, and answer with it."""
    if results:
        return results[-1]
    found = re.findall(r"Handoff Message: (.+)", said)[0].split(" | ")
    text = "\n".join(f"- {line}" for line in found if "Nothing is known" not in line)
    return {"toolUse": {"name": "save_report", "input": {"text": text or "Nothing was found."}}}


def _hand_over(to: str, message: str) -> Any:
    return {"toolUse": {"name": "handoff_to_agent", "input": {"agent_name": to, "message": message}}}


def _rules(decide: Callable[[str, Sequence[str]], Any]) -> Callable[[Sequence[Message], object, object], Any]:
    """A reply of a `ScriptedModel` from what was said to the agent, and the results of its last tools."""

    def reply(messages: Sequence[Message], tools: object, system_prompt: object) -> Any:
        said = "\n".join(block.get("text", "") for message in messages for block in message["content"])
        results = [
            str(part.get("text", part))
            for block in messages[-1]["content"]
            if "toolResult" in block
            for part in block["toolResult"]["content"]
        ]
        return decide(said, results)

    return reply


RULES = {"planner": _rules(plan), "researcher": _rules(search), "writer": _rules(write)}
