"""The documented samples on state, direct tool calls and windows, as sync programs.

The demands are those of the documentation of the SDK whose users we serve; each test is named after what its sample
shows. The model is scripted, or a provider's, which speaks its wire protocol to aimock, a peer, over loopback HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from repertory import (
    Agent,
    BedrockModel,
    Model,
    NullConversationManager,
    ScriptedModel,
    SlidingWindowConversationManager,
    calculator,
    tool,
)
from repertory.core.messages import Message, text_of, tool_results
from repertory.errors import ContextWindowOverflowException
from tests.backends.models.aimock_server import aimock
from tests.backends.models.conftest import aws_environment as aws_environment
from tests.backends.models.conftest import no_keys as no_keys
from tests.backends.models.sdk_services import ANTHROPIC, OPENAI

FIXTURES: list[dict[str, Any]] = [
    {"match": {"toolCallId": "call_login"}, "response": {"content": "Your login is recorded."}},
    {"match": {"toolCallId": "call_view"}, "response": {"content": "Your view is recorded."}},
    {
        "match": {"userMessage": "Track that I logged in"},
        "response": {
            "toolCalls": [{"name": "track_user_action", "arguments": '{"action": "logged in"}', "id": "call_login"}]
        },
    },
    {
        "match": {"userMessage": "Track that I viewed my profile"},
        "response": {
            "toolCalls": [{"name": "track_user_action", "arguments": '{"action": "viewed profile"}', "id": "call_view"}]
        },
    },
    {"match": {"userMessage": "Hello!"}, "response": {"content": "Hi there!"}},
    {"match": {"userMessage": "Hi there!"}, "response": {"content": "How can I help?"}},
]
MakeModel = Callable[..., Model]


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with aimock(FIXTURES, tmp_path_factory.mktemp("aimock")) as url:
        yield url


@pytest.fixture(params=["scripted", "bedrock", "anthropic", "openai"])
def model_of(request: pytest.FixtureRequest) -> MakeModel:
    """Makes the sample's model: scripted with these replies, or one that speaks to the peer, which says the same."""
    kind = str(request.param)
    if kind == "scripted":
        return lambda *replies: ScriptedModel(replies)
    url = str(request.getfixturevalue("peer"))
    request.getfixturevalue("aws_environment" if kind == "bedrock" else "no_keys")
    if kind == "bedrock":
        return lambda *replies: BedrockModel(endpoint_url=url)
    service = ANTHROPIC if kind == "anthropic" else OPENAI
    return lambda *replies: service.model(url)


def use(name: str, **arguments: object) -> dict[str, object]:
    return {"toolUse": {"name": name, "input": arguments}}


def said(messages: Sequence[Message]) -> list[tuple[str, str]]:
    return [(message["role"], text_of(message)) for message in messages]


def test_the_history_is_at_hand_after_a_call(model_of: MakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    agent = Agent(model_of("Hi there!"))

    agent("Hello!")

    print(agent.messages)
    assert said(agent.messages) == [("user", "Hello!"), ("assistant", "Hi there!")]
    printed = capsys.readouterr().out
    assert "{'role': 'user', 'content': [{'text': 'Hello!'}]}" in printed


def test_an_agent_continues_from_the_messages_it_is_given() -> None:
    model = ScriptedModel(["Your name is Ann."])
    agent = Agent(
        model,
        messages=[
            {"role": "user", "content": [{"text": "Hello, my name is Ann!"}]},
            {"role": "assistant", "content": [{"text": "Hi there! How can I help you today?"}]},
        ],
    )

    agent("What's my name?")

    assert [text for _, text in said(model.calls[0].messages)] == [
        "Hello, my name is Ann!",
        "Hi there! How can I help you today?",
        "What's my name?",
    ]


def test_a_direct_tool_call_is_recorded_unless_it_is_told_not_to_be(model_of: MakeModel) -> None:
    agent = Agent(model_of(), tools=[calculator])

    recorded = agent.tool.calculator(expression="123 * 456")
    unrecorded = agent.tool.calculator(expression="765 / 987", record_direct_tool_call=False)

    assert recorded["content"] == [{"text": "56088"}]
    assert unrecorded["content"] == [{"text": str(765 / 987)}]
    prompt, asked, answered, closed = agent.messages
    assert text_of(prompt) == (
        'agent.tool.calculator direct tool call.\nInput parameters: {"expression": "123 * 456"}\n'
    )
    assert [block["toolUse"]["name"] for block in asked["content"] if "toolUse" in block] == ["calculator"]
    assert next(tool_results(answered))["content"] == [{"text": "56088"}]
    assert text_of(closed) == "agent.tool.calculator was called."


def test_what_was_called_directly_is_history_for_the_model(model_of: MakeModel) -> None:
    """The sample goes no further; a provider must accept what was recorded."""
    agent = Agent(model_of("Hi there!"), tools=[calculator])

    agent.tool.calculator(expression="123 * 456")

    assert str(agent("Hello!")) == "Hi there!"
    assert len(agent.messages) == 6


def test_a_window_of_ten_shows_the_ten_latest_messages() -> None:
    conversation_manager = SlidingWindowConversationManager(window_size=10)
    model = ScriptedModel("ok", loop=True)
    agent = Agent(model, conversation_manager=conversation_manager)

    for number in range(8):
        agent(f"message {number}")

    assert len(agent.messages) == 10
    assert text_of(agent.messages[0]) == "message 3"
    assert max(len(call.messages) for call in model.calls) == 11


def test_state_is_read_set_listed_and_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    agent = Agent(ScriptedModel([]), state={"user_preferences": {"theme": "dark"}, "session_count": 0})

    theme = agent.state.get("user_preferences")
    print(theme)
    agent.state.set("last_action", "login")
    agent.state.set("session_count", 1)
    all_state = agent.state.get()
    print(all_state)
    agent.state.delete("last_action")

    assert capsys.readouterr().out == (
        "{'theme': 'dark'}\n{'user_preferences': {'theme': 'dark'}, 'session_count': 1, 'last_action': 'login'}\n"
    )
    assert agent.state.get() == {"user_preferences": {"theme": "dark"}, "session_count": 1}


def test_state_takes_what_json_can_say_and_refuses_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    agent = Agent(ScriptedModel([]))

    agent.state.set("string_value", "hello")
    agent.state.set("number_value", 42)
    agent.state.set("boolean_value", True)
    agent.state.set("list_value", [1, 2, 3])
    agent.state.set("dict_value", {"nested": "data"})
    agent.state.set("null_value", None)
    try:
        agent.state.set("function", lambda x: x)
    except ValueError as e:
        print(f"Error: {e}")

    assert capsys.readouterr().out == (
        "Error: Value is not JSON serializable: function. "
        "Only JSON-compatible types (str, int, float, bool, list, dict, None) are allowed.\n"
    )
    assert agent.state.get() == {
        "string_value": "hello",
        "number_value": 42,
        "boolean_value": True,
        "list_value": [1, 2, 3],
        "dict_value": {"nested": "data"},
        "null_value": None,
    }


@tool
def track_user_action(action: str, agent: Agent):
    """Track user actions in agent state."""
    action_count: Any = agent.state.get("action_count") or 0
    agent.state.set("action_count", action_count + 1)
    agent.state.set("last_action", action)
    return f"Action '{action}' recorded. Total actions: {action_count + 1}"


@tool
def get_user_stats(agent: Agent):
    """Get user statistics from agent state."""
    action_count = agent.state.get("action_count") or 0
    last_action = agent.state.get("last_action") or "none"
    return f"Actions performed: {action_count}, Last action: {last_action}"


def test_tools_read_and_change_the_state_of_their_agent(
    model_of: MakeModel, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of(
        use("track_user_action", action="logged in"),
        "Your login is recorded.",
        use("track_user_action", action="viewed profile"),
        "Your view is recorded.",
    )
    agent = Agent(model, tools=[track_user_action, get_user_stats], callback_handler=None)

    agent("Track that I logged in")
    agent("Track that I viewed my profile")
    print(f"Actions taken: {agent.state.get('action_count')}")
    print(f"Last action: {agent.state.get('last_action')}")

    assert capsys.readouterr().out == "Actions taken: 2\nLast action: viewed profile\n"
    assert [message["role"] for message in agent.messages] == ["user", "assistant"] * 4
    answer = next(tool_results(agent.messages[6]))
    assert answer["content"] == [{"text": "Action 'viewed profile' recorded. Total actions: 2"}]


def test_request_state_is_shared_by_every_event_of_a_call(
    model_of: MakeModel, capsys: pytest.CaptureFixture[str]
) -> None:
    counted: list[int] = []

    def custom_callback_handler(**kwargs: Any) -> None:
        if "request_state" in kwargs:
            state = kwargs["request_state"]
            if "counter" not in state:
                state["counter"] = 0
            state["counter"] += 1
            counted.append(state["counter"])
            print(f"Callback handler event count: {state['counter']}")

    agent = Agent(model_of("How can I help?"), callback_handler=custom_callback_handler)

    result = agent("Hi there!")

    print(result.state)
    assert counted == list(range(1, len(counted) + 1))
    assert len(counted) > 3
    assert result.state == {"counter": len(counted)}
    assert capsys.readouterr().out.endswith(f"{{'counter': {len(counted)}}}\n")


def test_without_management_everything_is_shown() -> None:
    model = ScriptedModel("ok", loop=True)
    agent = Agent(model, conversation_manager=NullConversationManager())

    for number in range(30):
        agent(f"message {number}")

    assert len(agent.messages) == 60
    assert len(model.calls[-1].messages) == 59


@tool(effects=False)
def read_log() -> str:
    """Read a long text."""
    return "line of a log\n" * 1_000


def test_a_window_of_twenty_shortens_a_long_tool_result_when_the_model_overflows() -> None:
    conversation_manager = SlidingWindowConversationManager(window_size=20, should_truncate_results=True)
    model = ScriptedModel([use("read_log"), ContextWindowOverflowException("too long"), "a summary"])
    agent = Agent(model, tools=[read_log], conversation_manager=conversation_manager)

    assert str(agent("What does the log say?")) == "a summary"

    whole, shortened = (next(tool_results(call.messages[2]))["content"] for call in model.calls[1:])
    assert len(str(whole)) > 10_000
    assert len(str(shortened)) < 1_000
    assert len(agent.messages) == 4


@tool(effects=False)
def step() -> str:
    """Take a step."""
    return "taken"


@pytest.mark.parametrize(("per_turn", "most"), [(False, 25), (True, 5), (3, 10)])
def test_a_window_per_turn_is_kept_while_a_long_turn_goes_on(per_turn: bool | int, most: int) -> None:
    conversation_manager = SlidingWindowConversationManager(window_size=4, per_turn=per_turn)
    steps = [use("step") for _ in range(11)]
    model = ScriptedModel(["hello", *steps, "done"])
    agent = Agent(model, tools=[step], conversation_manager=conversation_manager)

    agent("hello")
    agent("Take eleven steps")

    shown = [len(call.messages) for call in model.calls]
    assert max(shown) <= most
    assert (max(shown) > 5) is (per_turn is not True)
