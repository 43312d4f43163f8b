"""Three levels of agents with everything by which one starts another: what they do, and what must have come of it.

A boss has a tool for each branch of the tree. Each branch is a child, which starts grandchildren in one way of several;
they act with tools that may be repeated, tools with steps, and tools that a person is asked about after a kill. Effects
are names, which a function of the caller takes. So the same tree runs in memory and in processes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import anyio
from msgspec import Struct

from repertory import Agent, AgentSpec, ScriptedModel, StepContext, Subagents, ToolContext, tool
from repertory.core.messages import Message, text_of, tool_results

BOSS = "boss"
OF_CHILDREN = ("tool", "team", "spawned", "background", "detached", "two detached")
OF_GRANDCHILDREN = ("tool", "team", "team in the background", "spawned", "two beside each other")
TOOLS = ("count", "walk", "pay", "ask")
STEPS = 2
Act = Callable[[str, str], Awaitable[str]]
"""Makes an effect of this name under this key, and returns the name."""


class Branch(Struct, frozen=True):
    """A child with its grandchildren."""

    name: str
    child: str
    """The way in which the boss starts it."""
    grandchildren: str
    """The way in which it starts them."""
    tools: tuple[str, ...]
    """The tools that each grandchild calls, one after the other."""

    @property
    def children(self) -> Sequence[str]:
        """The names of the children."""
        return [f"{self.name}{letter}" for letter in "xy"] if self.child == "two detached" else [self.name]

    @property
    def workers(self) -> Sequence[str]:
        """The names of the grandchildren."""
        twice = self.grandchildren == "two beside each other"
        return [f"{child}{letter}" for child in self.children for letter in ("vw" if twice else "v")]

    @property
    def effects(self) -> Sequence[str]:
        """The effects of the branch, each of which takes place once."""
        names = {"count": ["count"], "walk": [f"walk{n}" for n in range(STEPS)], "pay": ["pay"], "ask": ["ask"]}
        return [f"{name}-{worker}" for worker in self.workers for each in self.tools for name in names[each]]

    def told(self, child: str) -> str:
        """The answer of a child."""
        return " ".join(f"{worker} did {' '.join(self.tools)}" for worker in self.workers if worker.startswith(child))


def branches(rng: random.Random, count: int) -> list[Branch]:
    """The branches of a tree."""
    return [
        Branch(
            f"b{number}",
            rng.choice(OF_CHILDREN),
            rng.choice(OF_GRANDCHILDREN),
            tuple(rng.sample(TOOLS, rng.randint(1, 3))),
        )
        for number in range(count)
    ]


def boss(tree: Sequence[Branch], act: Act) -> AgentSpec:
    """The agent that has the whole tree do its work when it is told to go."""
    asked = [_use(each.name, **_asked(each)) for each in tree]

    def think(messages: Sequence[Message], *_: object) -> Any:
        return asked if not any(True for each in messages for _ in tool_results(each)) else "I see."

    return AgentSpec(
        name=BOSS,
        model=ScriptedModel([think], loop=True),
        tools=[each for branch in tree for each in _branch_tools(branch, act)],
        background_tasks={"wait_for_completion": False, "agentic": [], "max_concurrency": 3},
    )


def _use(name: str, **given: object) -> dict[str, object]:
    return {"toolUse": {"name": name, "input": given}}


def _asked(branch: Branch) -> dict[str, object]:
    if branch.child in ("team", "background"):
        return {"agent": branch.name, "prompt": branch.name}
    return {"input": branch.name} if branch.child == "tool" else {}


def _branch_tools(branch: Branch, act: Act) -> list[Any]:
    child = _child(branch, act)

    @tool(name=branch.name, description="Have the child do it.", durable=True)
    async def start(tool_context: ToolContext) -> str:
        if branch.child == "spawned":
            return str(await tool_context.spawn(child, branch.name))
        for each in branch.children:
            await tool_context.spawn(child, each, detached=True)
        return "dispatched"

    match branch.child:
        case "tool":
            return [child.as_tool()]
        case "team" | "background":
            return [Subagents(child, name=branch.name, background=branch.child == "background")]
        case "spawned":
            return [start]
        case _:
            return [start, child.as_tool(name=f"{branch.name}_child")]


def _child(branch: Branch, act: Act) -> Agent:
    worker = _worker(branch, act)
    ways = branch.grandchildren

    @tool(durable=True)
    async def delegate(of: str, tool_context: ToolContext) -> str:
        """Have grandchildren do it."""
        found = dict[str, str]()

        async def one(name: str) -> None:
            found[name] = str(await tool_context.spawn(worker, name))

        async with anyio.create_task_group() as group:
            for letter in "vw" if ways == "two beside each other" else "v":
                group.start_soon(one, f"{of}{letter}")
        return " ".join(found[name] for name in sorted(found))

    def think(messages: Sequence[Message], *_: object) -> Any:
        name = text_of(messages[0])
        if results := _results(messages):
            return results[-1]
        if ways in ("tool", "team", "team in the background"):
            given = {"input": f"{name}v"} if ways == "tool" else {"agent": "worker", "prompt": f"{name}v"}
            return _use("worker" if ways == "tool" else "subagent", **given)
        return _use("delegate", of=name)

    tools: list[Any] = [delegate]
    if ways == "tool":
        tools = [worker.as_tool()]
    elif ways.startswith("team"):
        tools = [Subagents(worker, background=ways != "team")]
    return Agent(ScriptedModel([think], loop=True), name=branch.name, tools=tools, callback_handler=None)


def _worker(branch: Branch, act: Act) -> Agent:
    @tool(idempotent=True)
    async def count(of: str, tool_context: ToolContext) -> str:
        """Count."""
        return await act(f"count-{of}", tool_context.idempotency_key)

    async def step(name: str, *, step_context: StepContext) -> str:
        return await act(name, step_context.idempotency_key)

    @tool(durable=True)
    async def walk(of: str, tool_context: ToolContext) -> str:
        """Walk."""
        for number in range(STEPS):
            await tool_context.report(f"step {number}")
            await tool_context.step(f"walk{number}", step, f"walk{number}-{of}")
        return "walked"

    @tool
    async def pay(of: str, tool_context: ToolContext) -> str:
        """Pay."""
        return await act(f"pay-{of}", tool_context.idempotency_key)

    @tool
    async def ask(of: str, tool_context: ToolContext) -> str:
        """Ask a person, then act."""
        assert tool_context.interrupt("really?", reason={"tool": "ask", "input": {"of": of}}) == "yes"
        return await act(f"ask-{of}", tool_context.idempotency_key)

    def think(messages: Sequence[Message], *_: object) -> Any:
        name, done = text_of(messages[0]), len(_results(messages))
        return _use(branch.tools[done], of=name) if done < len(branch.tools) else f"{name} did {' '.join(branch.tools)}"

    model = ScriptedModel([think], loop=True)
    return Agent(model, name="worker", tools=[count, walk, pay, ask], callback_handler=None)


def _results(messages: Iterable[Message]) -> list[str]:
    return [
        str(block.get("text"))
        for message in messages
        for result in tool_results(message)
        for block in result["content"]
    ]


def answer(question: Any, done: Iterable[str]) -> Any:
    """What a person says to a question who looks for effects: `done` are those that took place."""
    reason = question.reason
    of, step = reason["input"]["of"], re.split("[~#]", str(reason.get("step") or ""))[0]
    name = f"{step or reason['tool']}-{of}"
    said: object = {"result": name} if name in done else "retry"
    if question.name == "really?":
        said = "yes"
    return {"interruptResponse": {"interruptId": question.id, "response": said}}


def wanted(tree: Sequence[Branch]) -> list[str]:
    """What the boss is told, at once or late."""
    return sorted(branch.told(child) for branch in tree for child in branch.children)


def told(messages: Sequence[Message]) -> list[str]:
    """What the boss was told, without acknowledgements."""
    block = r"<background_tool_result [^>]*>\n(.*?)\n</background_tool_result>"
    late = [text for message in messages for text in re.findall(block, text_of(message), re.DOTALL)]
    return sorted(late + [text for text in _results(messages) if "dispatched" not in text])
