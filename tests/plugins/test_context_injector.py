"""What is said to the model in single calls only. The names are those of the SDK whose users we serve; the deadline,
the numbering and content blocks are our decisions.
"""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    AgentSpec,
    BeforeModelCallEvent,
    ContextInjector,
    InjectionContext,
    InMemoryStorage,
    JournalSessionManager,
    Runtime,
    ScriptedModel,
    Throttled,
    tool,
)
from repertory.core.messages import Message
from repertory.core.tokens import INJECTED_TOKENS
from repertory.core.window.gauge import RequestOverhead, TokenGauge
from repertory.errors import Invalid
from tests.plugins.kept_bytes import on_shelf

pytestmark = pytest.mark.anyio


@tool(effects=False)
async def look() -> str:
    """Look."""
    return "seen"


LOOK: Any = {"toolUse": {"name": "look", "input": {}}}


def agent_with(*replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(list(replies)), callback_handler=None, tools=[look], **options)


def shown(agent: Agent, call: int) -> list[Any]:
    """The blocks of the last message in a call of the model."""
    model = agent.model
    assert isinstance(model, ScriptedModel)
    return model.calls[call].messages[-1]["content"]


# ------------------------------------------------------------------------------------------------------- what is shown


async def test_what_is_injected_stands_behind_what_the_user_said_and_is_gone_in_the_next_call() -> None:
    agent = agent_with("one", "two", plugins=[ContextInjector(lambda context: f"{len(context.messages)} messages")])
    await agent.invoke_async("first")
    await agent.invoke_async("second")
    assert shown(agent, 0) == [{"text": "first"}, {"text": "1 messages"}]
    assert shown(agent, 1) == [{"text": "second"}, {"text": "3 messages"}]
    said = [block for message in agent.model.calls[1].messages[:-1] for block in message["content"]]  # type: ignore[attr-defined]
    assert said == [{"text": "first"}, {"text": "one"}]


async def test_what_is_injected_is_nowhere_to_be_found_afterwards() -> None:
    storage = InMemoryStorage()
    manager = JournalSessionManager("s", storage=storage)
    injector = ContextInjector(lambda _: "the weather is SUNNY", trigger="everyTurn")
    agent = agent_with(LOOK, "done", plugins=[injector], session_manager=manager)
    await agent.invoke_async("How is it?")
    assert all("SUNNY" in str(shown(agent, call)) for call in (0, 1))
    assert "SUNNY" not in str(agent.messages) + str(await agent.history())
    assert storage._shelf is not None
    bodies = list(on_shelf(storage._shelf)())
    assert bodies
    assert not [name for name, body in bodies if b"SUNNY" in body]


async def test_between_the_tools_of_a_turn_only_every_turn_injects() -> None:
    plugins = [ContextInjector(lambda _: "asked"), ContextInjector(lambda _: "always", trigger="everyTurn")]
    agent = agent_with(LOOK, "done", plugins=plugins)
    await agent.invoke_async("Look.")
    assert shown(agent, 0) == [{"text": "Look."}, {"text": "asked"}, {"text": "always"}]
    assert [next(iter(block)) for block in shown(agent, 1)] == ["toolResult", "text"]
    assert shown(agent, 1)[-1] == {"text": "always"}


async def test_a_predicate_decides_synchronous_or_not() -> None:
    async def after_tools(context: InjectionContext) -> bool:
        await anyio.sleep(0.01)
        return len(context.messages) > 1

    def if_wanted(context: InjectionContext) -> bool:
        return bool(context.state.get("wanted"))

    plugins = [ContextInjector(lambda _: "a", trigger=after_tools), ContextInjector(lambda _: "b", trigger=if_wanted)]
    agent = agent_with(LOOK, "done", plugins=plugins, state={"wanted": True})
    await agent.invoke_async("Look.")
    assert shown(agent, 0)[1:] == [{"text": "b"}]
    assert shown(agent, 1)[1:] == [{"text": "a"}, {"text": "b"}]


async def test_a_renderer_gives_text_or_blocks_or_nothing_and_knows_its_agent() -> None:
    image = {"image": {"format": "png", "source": {"bytes": b"png"}}}

    async def blocks(context: InjectionContext) -> list[Any]:
        await anyio.sleep(0.01)
        return [{"text": context.agent.name}, image]

    plugins = [ContextInjector(blocks), ContextInjector(lambda _: None), ContextInjector(lambda _: "  ")]
    agent = agent_with("ok", plugins=plugins, name="Ann")
    await agent.invoke_async("Hi")
    assert shown(agent, 0) == [{"text": "Hi"}, {"text": "Ann"}, image]


async def test_what_is_injected_stands_behind_a_cache_point_of_the_users() -> None:
    agent = agent_with("ok", plugins=[ContextInjector(lambda _: "now")])
    said: list[Any] = [{"text": "a long text"}, {"cachePoint": {"type": "default"}}]
    await agent.invoke_async(said)
    assert shown(agent, 0) == [*said, {"text": "now"}]


async def test_a_renderer_that_edits_the_messages_edits_a_copy() -> None:
    def rude(context: InjectionContext) -> str:
        context.messages[0]["content"][0]["text"] = "changed"
        return "x"

    agent = agent_with("ok", plugins=[ContextInjector(rude)])
    await agent.invoke_async("Hi")
    assert shown(agent, 0)[0] == {"text": "Hi"}
    assert agent.messages[0]["content"] == [{"text": "Hi"}]


async def test_a_call_that_is_made_again_is_rendered_again() -> None:
    times = iter("123")
    agent = agent_with(Throttled("slow down"), "ok", plugins=[ContextInjector(lambda _: next(times))])
    await agent.invoke_async("Hi")
    assert [shown(agent, call)[1:] for call in (0, 1)] == [[{"text": "1"}], [{"text": "2"}]]


async def test_nothing_is_rendered_for_a_call_that_a_hook_answers() -> None:
    rendered: list[str] = []

    def deny(event: BeforeModelCallEvent) -> None:
        event.cancel = "no"

    agent = agent_with(plugins=[ContextInjector(lambda _: rendered.append("x"))])
    agent.add_hook(deny)
    result = await agent.invoke_async("Hi")
    assert (str(result), rendered) == ("no", [])


# ----------------------------------------------------------------------------------------------------------- fails open


@pytest.mark.parametrize("wrong", [7, [{"toolResult": {}}], [3], object(), [{"text": object()}]])
async def test_what_fails_is_logged_and_the_others_still_inject(wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    def raising(_: InjectionContext) -> str:
        raise RuntimeError("renderer")

    def raising_trigger(_: InjectionContext) -> bool:
        raise RuntimeError("trigger")

    plugins = [
        ContextInjector(raising, name="broken"),
        ContextInjector(lambda _: "never", trigger=raising_trigger),
        ContextInjector(lambda _: wrong, name="wrong"),
        ContextInjector(lambda _: "still there"),
    ]
    agent = agent_with("ok", plugins=plugins)
    with caplog.at_level(logging.ERROR, logger="repertory.injections"):
        await agent.invoke_async("Hi")
    assert shown(agent, 0) == [{"text": "Hi"}, {"text": "still there"}]
    assert sorted(record.__dict__["injection"] for record in caplog.records) == [
        "broken",
        "strands:context-injector",
        "wrong",
    ]


async def test_renderers_run_at_once_and_those_that_hang_are_left_out_at_their_deadline() -> None:
    async def hang(_: InjectionContext) -> str:
        await anyio.sleep_forever()
        raise AssertionError

    async def slow(_: InjectionContext) -> str:
        await anyio.sleep(0.9)
        return "slow"

    plugins = [
        ContextInjector(hang, timeout_s=1),
        ContextInjector(slow, timeout_s=1),
        ContextInjector(hang, timeout_s=1),
    ]
    agent = agent_with("ok", plugins=plugins)
    started = anyio.current_time()
    await agent.invoke_async("Hi")
    assert shown(agent, 0) == [{"text": "Hi"}, {"text": "slow"}]
    assert round(anyio.current_time() - started, 6) == 1


async def test_a_turn_that_is_cancelled_does_not_wait_for_its_renderers() -> None:
    async def hang(context: InjectionContext) -> str:
        context.agent.cancel("enough")
        await anyio.sleep_forever()
        raise AssertionError

    agent = agent_with("ok", plugins=[ContextInjector(hang, timeout_s=3_600)])
    started = anyio.current_time()
    result = await agent.invoke_async("Hi")
    assert result.stop_reason == "cancelled"
    assert anyio.current_time() - started < 60
    assert not agent.model.calls  # type: ignore[attr-defined]


# --------------------------------------------------------------------------------------------------- names, settings


async def test_injectors_without_a_name_are_numbered_and_one_name_twice_is_refused() -> None:
    one = ContextInjector(lambda _: "a")
    agent = agent_with("ok", plugins=[one, ContextInjector(lambda _: "b"), ContextInjector(lambda _: "c", name="time")])
    names = [injection.name for injection in agent.hooks.injections]
    assert names == ["strands:context-injector", "strands:context-injector-2", "time"]
    for twice in ([one, one], [ContextInjector(lambda _: "a", name="x"), ContextInjector(lambda _: "b", name="x")]):
        with pytest.raises(Invalid, match="two plugins have the same name"):
            agent_with(plugins=twice)


@pytest.mark.parametrize("options", [{"trigger": "sometimes"}, {"timeout_s": 0}, {"timeout_s": float("inf")}])
async def test_settings_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        ContextInjector(lambda _: "a", **options)
    with pytest.raises(Invalid):
        ContextInjector("text")  # type: ignore[arg-type]


async def test_one_injector_serves_every_session_of_a_runtime_and_copies_of_an_agent() -> None:
    injector = ContextInjector(lambda context: f"for {context.agent.session_id}")
    async with Runtime() as runtime:
        model = ScriptedModel(["ok"], loop=True)
        hosted = runtime.agent(AgentSpec(model=model, plugins=[injector]))
        for session_id in ("ann", "bob"):
            await hosted.session(session_id).invoke("Hi")
    assert [call.messages[-1]["content"][-1] for call in model.calls] == [{"text": "for ann"}, {"text": "for bob"}]
    agent = agent_with("ok", plugins=[injector])
    await agent.fresh_copy().invoke_async("Hi")
    assert shown(agent, 0)[1:] == [{"text": "for None"}]


# ------------------------------------------------------------------------------------------------------------- counting


def test_estimates_do_not_count_what_is_gone_by_the_next_call() -> None:
    def answer(injected: int) -> Message:
        usage: Any = {"inputTokens": 900 + injected, "outputTokens": 100, "totalTokens": 1_000 + injected}
        return {
            "role": "assistant",
            "content": [{"text": "a"}],
            "metadata": {"usage": usage, "custom": {INJECTED_TOKENS: injected}},
        }

    measured = []
    for injected in (0, 5_000):
        gauge = TokenGauge()
        question: Message = {"role": "user", "content": [{"text": "q" * 3_600}]}
        gauge.take_in(question)
        assert gauge.tokens([question], RequestOverhead()) == 900
        gauge.take_in(answer(injected))
        gauge.take_in(question)
        measured.append(gauge.tokens([question, answer(injected), question], RequestOverhead()))
    assert measured == [1_900, 1_900]


async def test_an_answer_says_how_much_was_injected_for_it() -> None:
    agent = agent_with("ok", "ok", plugins=[ContextInjector(lambda context: "x" * 400 * (len(context.messages) == 1))])
    await agent.invoke_async("Hi")
    await agent.invoke_async("Hi")
    noted = [message.get("metadata", {}).get("custom") for message in agent.messages if message["role"] == "assistant"]
    assert noted == [{INJECTED_TOKENS: 100}, None]
