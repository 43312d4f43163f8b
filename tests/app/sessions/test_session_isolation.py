"""Sessions of one spec know nothing of each other: whatever can change is each session's own, or refused."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    AgentSpec,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    ContextInjector,
    ContextOffloader,
    ConversationManager,
    GraphBuilder,
    InMemoryStorage,
    JournalSessionManager,
    MessageAddedEvent,
    Plugin,
    Runtime,
    ScriptedModel,
    SlidingWindowConversationManager,
    SummarizingConversationManager,
    tool,
)
from repertory.core.messages import text_of
from repertory.core.state import AgentState
from repertory.errors import Invalid

pytestmark = pytest.mark.anyio


class Gossip(ConversationManager):
    """Writes down whatever it hears."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []
        self.notes = {"said": self.heard}

    def apply_management(self, agent: Any, **kwargs: Any) -> None:
        self.heard += [text_of(message) for message in agent.messages if message["role"] == "user"]

    def reduce_context(self, agent: Any, e: Exception | None = None, **kwargs: Any) -> None:
        raise e or ValueError("never")

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        registry.add_callback(BeforeModelCallEvent, lambda event: self.heard.append("asked"))


class Extended(SlidingWindowConversationManager):
    """A ready one that hears as well."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        registry.add_callback(MessageAddedEvent, lambda event: self.heard.append(text_of(event.message)))


def echo(*_: Any) -> str:
    return "ok"


def spec_with(**fields: Any) -> AgentSpec:
    return AgentSpec(**{"model": ScriptedModel([echo], loop=True), **fields})


async def both_said(spec: AgentSpec) -> tuple[Agent, Agent]:
    """Two sessions in which something was said, the first one first."""
    async with Runtime() as runtime:
        hosted = runtime.agent(spec)
        one, two = hosted.session("one"), hosted.session("two")
        await one.invoke("a secret of one")
        await two.invoke("hello from two")
        return one.agent, two.agent


@pytest.mark.parametrize("kind", [Gossip, Extended])
@pytest.mark.parametrize("made", [True, False], ids=["factory", "copied"])
async def test_a_conversation_manager_of_ones_own_hears_its_own_session_only(kind: Any, made: bool) -> None:
    given = kind() if not made else kind
    one, two = await both_said(spec_with(conversation_manager=given))
    assert "secret" in str(one.conversation_manager.heard)
    assert two.conversation_manager.heard
    assert "secret" not in str(two.conversation_manager.heard)
    assert made or given.heard == []


async def test_a_manager_that_cannot_be_copied_is_refused_with_what_to_write_instead() -> None:
    class Locked(Gossip):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    class Alone(Gossip):
        def __deepcopy__(self, memo: object) -> Alone:
            return self

    async with Runtime() as runtime:
        for kind in (Locked, Alone):
            with pytest.raises(Invalid, match=rf"conversation_manager=lambda: {kind.__name__}"):
                runtime.agent(spec_with(conversation_manager=kind()))
            runtime.agent(spec_with(conversation_manager=kind))
        always = Locked()
        with pytest.raises(Invalid, match="a new one each time"):
            runtime.agent(spec_with(conversation_manager=lambda: always))
        with pytest.raises(Invalid, match="ConversationManager"):
            runtime.agent(spec_with(conversation_manager=dict))


async def test_a_summarizing_manager_with_an_agent_of_its_own_serves_many_sessions() -> None:
    writer = Agent(ScriptedModel(["short"], loop=True), callback_handler=None)
    one, two = await both_said(
        spec_with(conversation_manager=SummarizingConversationManager(summarization_agent=writer))
    )
    assert one.conversation_manager is not two.conversation_manager
    assert writer.messages == []


def helper(**options: Any) -> Agent:
    return Agent(ScriptedModel([echo], loop=True), name="helper", callback_handler=None, **options)


def behind_another(agent: Agent) -> object:
    """An agent that forgets, and asks one that remembers."""
    return helper(tools=[agent.as_tool(preserve_context=True)]).as_tool()


class Helps(Plugin):
    name = "helps"

    @property
    def tools(self) -> Any:
        return [helper().as_tool(preserve_context=True)]


@pytest.mark.parametrize(
    "fields",
    [
        lambda: {"tools": [helper().as_tool(preserve_context=True)]},
        lambda: {"tools": [[behind_another(helper())]]},
        lambda: {"plugins": [Helps()]},
    ],
    ids=["tool", "behind", "plugin"],
)
async def test_an_agent_as_a_tool_that_remembers_is_refused_in_a_spec(fields: Any) -> None:
    async with Runtime() as runtime:
        with pytest.raises(Invalid, match="one memory for all sessions"):
            runtime.agent(spec_with(**fields()))


async def test_an_agent_as_a_tool_begins_anew_for_each_session_and_so_does_its_manager() -> None:
    manager = Gossip()
    asked = helper(conversation_manager=manager)
    uses = [{"toolUse": {"name": "helper", "input": {"input": text}}} for text in ("the secret", "the weather")]
    model = ScriptedModel([uses[0], "ok", uses[1], "ok"])
    await both_said(spec_with(model=model, tools=[asked]))
    assert [[text_of(one) for one in call.messages] for call in asked.model.calls] == [["the secret"], ["the weather"]]
    assert manager.heard == []


async def test_an_agent_whose_manager_cannot_be_copied_is_no_tool_that_forgets() -> None:
    class Locked(Gossip):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    with pytest.raises(Invalid, match="conversation_manager=lambda: Locked"):
        helper(conversation_manager=Locked()).as_tool()
    helper(conversation_manager=Locked()).as_tool(preserve_context=True)
    made = helper(conversation_manager=Locked)
    assert made.fresh_copy().conversation_manager is not made.conversation_manager


@pytest.mark.parametrize("make", [dict, AgentState], ids=["dict", "AgentState"])
async def test_the_state_of_a_spec_is_copied_for_each_session(make: Any) -> None:
    given = make({"notes": []})

    @tool
    def note(agent: Agent) -> str:
        """Note."""
        agent.state.get("notes").append("lost")
        agent.state.set("notes", [*agent.state.get("notes"), "mine"])
        return "noted"

    model = ScriptedModel([{"toolUse": {"name": "note", "input": {}}}, "ok", "ok"])
    one, two = await both_said(spec_with(model=model, tools=[note], state=given))
    assert one.state.get("notes") == ["mine"]
    assert two.state.get("notes") == []
    assert given == {"notes": []} if isinstance(given, dict) else given.get() == {"notes": []}


async def test_what_one_session_does_to_prompt_and_first_messages_is_its_own() -> None:
    class Edits:
        def __init__(self) -> None:
            self.told = False

        def register_hooks(self, registry: Any) -> None:
            registry.add_callback(BeforeInvocationEvent, self.edit)

        def edit(self, event: Any) -> None:
            if not self.told:
                self.told = True
                event.agent.system_prompt_content[0]["text"] += " a secret"
                event.agent.messages[0]["content"][0]["text"] += " a secret"
                event.agent.enabled_tools = []

    @tool
    def idle() -> str:
        """Nothing."""
        return ""

    model = ScriptedModel([echo], loop=True)
    spec = spec_with(
        model=model,
        system_prompt=[{"text": "Be kind."}],
        messages=[{"role": "user", "content": [{"text": "first"}]}, {"role": "assistant", "content": [{"text": "ok"}]}],
        hooks=[Edits()],
        tools=[idle],
    )
    one, two = await both_said(spec)
    assert "secret" in str(one.system_prompt)
    assert "secret" in str(one.messages)
    assert one.enabled_tools == []
    assert "secret" not in str((two.system_prompt, two.messages, model.calls[1].messages, spec))
    assert two.enabled_tools is None


async def test_shared_plugins_tell_each_session_of_itself() -> None:
    seen: list[tuple[Any, str]] = []

    def render(context: Any) -> str:
        seen.append((context.agent, text_of(context.messages[-1])))
        return f"<who>{context.agent.session_id}</who>"

    model = ScriptedModel([echo], loop=True)
    one, two = await both_said(spec_with(model=model, plugins=[ContextInjector(render)]))
    assert seen == [(one, "a secret of one"), (two, "hello from two")]
    assert [call.messages[-1]["content"][1]["text"] for call in model.calls] == ["<who>one</who>", "<who>two</who>"]


async def test_what_is_offloaded_in_one_session_cannot_be_read_in_another() -> None:
    @tool
    def measure() -> str:
        """Measure."""
        return "secret " * 5_000

    def read(messages: Any, *_: Any) -> Any:
        return {"toolUse": {"name": "retrieve_offloaded_content", "input": {"reference": references[0]}}}

    references: list[str] = []

    def remember(messages: Any, *_: Any) -> str:
        preview = messages[-1]["content"][0]["toolResult"]["content"][0]["text"]
        references.append(preview.split("[Stored references:]")[1].split()[0])
        return "ok"

    model = ScriptedModel([{"toolUse": {"name": "measure", "input": {}}}, remember, read, "ok"])
    _, two = await both_said(spec_with(model=model, tools=[measure], plugins=[ContextOffloader()]))
    (result,) = [block["toolResult"] for block in two.messages[2]["content"]]
    assert result["status"] == "error"
    assert "secret secret" not in str(two.messages)


async def test_the_states_of_calls_are_not_shared_when_sessions_run_at_the_same_time() -> None:
    class Marks:
        def register_hooks(self, registry: Any) -> None:
            registry.add_callback(BeforeInvocationEvent, self.mark)

        def mark(self, event: Any) -> None:
            event.invocation_state.setdefault("request_state", {})[event.agent.session_id] = True

    async with Runtime() as runtime:
        hosted = runtime.agent(spec_with(model=ScriptedModel([echo], delay_s=1.0, loop=True), hooks=[Marks()]))
        states: dict[str, Any] = {}

        async def ask(name: str) -> None:
            states[name] = (await hosted.session(name).invoke("hello")).state

        async with anyio.create_task_group() as group:
            group.start_soon(ask, "one")
            group.start_soon(ask, "two")
    assert states == {"one": {"one": True}, "two": {"two": True}}


async def test_an_agent_in_two_graphs_begins_the_session_of_the_second_as_it_was_built() -> None:
    @tool
    def note(agent: Agent) -> str:
        """Note."""
        agent.state.set("seen", [*(agent.state.get("seen") or []), "a secret"])
        return "noted"

    uses: list[Any] = [{"toolUse": {"name": "note", "input": {}}}, "ok"]
    model = ScriptedModel([*uses, "ok", *uses, "ok"])
    agent = Agent(model, tools=[note], state={"kept": 1}, callback_handler=None)
    seen: list[Any] = []
    agent.add_hook(lambda event: seen.append(event.agent.state.get()), BeforeInvocationEvent)
    storage = InMemoryStorage()

    def graph(session_id: str) -> Any:
        builder = GraphBuilder()
        builder.add_node(agent, "worker")
        builder.set_session_manager(JournalSessionManager(session_id, storage=storage))
        return builder.build()

    one, two = graph("one"), graph("two")
    for each in (one, two, one, two):
        await each.invoke_async("go")
    assert seen == [{"kept": 1}, {"kept": 1}, {"kept": 1, "seen": ["a secret"]}, {"kept": 1}]
