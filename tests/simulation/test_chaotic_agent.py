"""Whatever happens in a turn, its history is one that can go on, the next call works, and restored equals live."""

from __future__ import annotations

import random
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import Agent, NullConversationManager, SQLiteSessionManager
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import Message, check_next, tool_uses
from repertory.core.retry import ModelRetryStrategy
from repertory.errors import ActorDead, ActorFailed, RepertoryError
from tests.simulation.chaotic_agent import KINDS, Chaos, ChaoticHooks, ChaoticModel, Report, tools_of

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

AGENTS_IN_MEMORY = 30
AGENTS_AT_MOST = 200
AGENTS_ON_DISK = 6
TURNS = 6


def agent_of(chaos: Chaos, **options: Any) -> Agent:
    rng = chaos.rng
    return Agent(
        ChaoticModel(chaos),
        tools=tools_of(chaos),
        hooks=[ChaoticHooks(chaos)],
        callback_handler=None,
        conversation_manager=NullConversationManager() if rng.random() < 0.5 else None,
        retry_strategy=ModelRetryStrategy(initial_delay=chaos.unit_s, transient_delay=chaos.unit_s),
        tool_execution=rng.choice(["concurrent", "sequential"]),
        durability=rng.choice(["pipelined", "strict", "relaxed"]),
        **options,
    )


def options_of(chaos: Chaos) -> dict[str, Any]:
    rng = chaos.rng
    options: dict[str, Any] = {"limits": {"turns": rng.randint(1, 8)}}
    if rng.random() < 0.3:
        options["structured_output_model"] = Report
    if rng.random() < 0.3:
        options["timeout_s"] = rng.randint(1, 10) * chaos.unit_s
    if rng.random() < 0.4:
        options["idempotency_token"] = rng.choice("abc")
    if rng.random() < 0.2:
        options["drop_interrupts"] = True
    if rng.random() < 0.3:
        options["busy"] = rng.choice(["queue", "reject", "interrupt", "steer"])
    return options


async def one_call(agent: Agent, chaos: Chaos) -> None:
    """A call in one of the ways in which calls are made. It may fail, though only with an error that is ours."""
    prompt: Any = chaos.rng.choice(["go", [{"text": "go"}], None])
    if chaos.asked and agent.interrupts and chaos.chance(0.8):
        some = chaos.rng.sample(agent.interrupts, chaos.rng.randint(1, len(agent.interrupts)))
        prompt = [{"interruptResponse": {"interruptId": one.id, "response": "yes"}} for one in some]
    try:
        if chaos.rng.random() < 0.5:
            result = await agent.invoke_async(prompt, **options_of(chaos))
            chaos.log.append(result.stop_reason)
            return
        async with aclosing(agent.stream_async(prompt, **options_of(chaos))) as events:
            async for _ in events:
                if chaos.chance(0.01):
                    break
    except (ActorDead, ActorFailed):
        raise
    except RepertoryError as error:
        chaos.log.append(type(error).__name__)


async def some_calls(agent: Agent, chaos: Chaos) -> None:
    """One call or a few at once, of which some are given up, while somebody may cancel."""
    with anyio.move_on_after(chaos.rng.choice([1000, 1000, 2, 5]) * chaos.unit_s):
        async with anyio.create_task_group() as group:
            for _ in range(chaos.rng.choice([1, 1, 2, 3])):
                group.start_soon(one_call, agent, chaos)
                await chaos.wait()
            if chaos.chance(0.3):
                await chaos.wait()
                agent.cancel()


def check_whole(history: list[Message]) -> None:
    """Every tool use has its result, and roles take turns."""
    previous = None
    for message in history:
        check_next(previous, message)
        assert previous is None or message["role"] != previous["role"], (previous, message)
        previous = message
    assert previous is not None
    assert previous["role"] == "assistant"
    assert not any(tool_uses(previous))


async def turn_after_turn(agent: Agent, chaos: Chaos) -> None:
    for _ in range(TURNS):
        chaos.on = True
        await some_calls(agent, chaos)
        chaos.on = False
        result = await agent.invoke_async("are you well?", drop_interrupts=True)
        if result.stop_reason == "cancelled":  # By a cancellation that came when no call ran: it stands for one call.
            result = await agent.invoke_async("are you well?", drop_interrupts=True)
        assert (str(result), result.stop_reason) == ("ok", "end_turn")
        check_whole(await agent.history())


async def live(agent: Agent, chaos: Chaos) -> None:
    """Some turns, inside one block or each for itself."""
    if chaos.rng.random() < 0.5:
        async with agent:
            await turn_after_turn(agent, chaos)
    else:
        await turn_after_turn(agent, chaos)


@pytest.mark.timeout(120)
async def test_agents_in_memory_survive_whatever_their_hooks_tools_and_models_do(seed: int) -> None:
    """Thirty agents, and more where chance has left out something that this campaign is there to reach."""
    outcomes = {"end_turn", "cancelled", "limit_turns", "HookFailed", "Throttled", "ModelFailed", "redacted"}
    outcomes |= {"interrupt", "InterruptsWaiting"}
    missing = {kind.__name__ for kind in KINDS} | outcomes
    for number in range(AGENTS_AT_MOST):
        if number >= AGENTS_IN_MEMORY and not missing:
            break
        print(f"agent {number} of seed {seed}")
        chaos = Chaos(random.Random(f"{seed} {number}"), unit_s=1.0)
        with anyio.fail_after(100_000):
            await live(agent_of(chaos), chaos)
        missing -= set(chaos.log)
    assert not missing


@pytest.mark.timeout(120)
@pytest.mark.real_time
async def test_agents_on_disk_do_too_and_what_is_restored_equals_what_was_live(seed: int, tmp_path: Path) -> None:
    for number in range(AGENTS_ON_DISK):
        print(f"agent {number} of seed {seed}")
        chaos = Chaos(random.Random(f"{seed} {number}"), unit_s=0.001)
        manager = SQLiteSessionManager(f"s{number}", path=tmp_path / "a.db")
        agent = agent_of(chaos, session_manager=manager)
        with anyio.fail_after(60):
            await live(agent, chaos)
        restored = agent_of(chaos, session_manager=manager)
        await restored.ready()
        assert restored.messages == agent.messages
        assert restored.state.get() == agent.state.get()
        assert await restored.history() == await agent.history()
