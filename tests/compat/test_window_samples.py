"""The documented samples on summaries and on compression ahead of need, as sync programs.

The demands are those of the documentation of the SDK whose users we serve; each test is named after what its sample
shows. Where a sample needs a model that refuses what is too long, a scripted one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from repertory import (
    Agent,
    AnthropicModel,
    BedrockModel,
    BeforeModelCallEvent,
    ConversationManager,
    SlidingWindowConversationManager,
    SummarizingConversationManager,
)
from repertory.core.messages import Message, text_of
from repertory.core.window.decision import SUMMARY_PROMPT
from tests.app.agent.test_conversation import NarrowModel
from tests.backends.models.aimock_server import aimock
from tests.backends.models.conftest import aws_environment as aws_environment
from tests.backends.models.conftest import no_keys as no_keys

FIXTURES: list[dict[str, Any]] = [
    {"match": {"userMessage": "Summarize the conversation"}, "response": {"content": "- They counted."}},
    {"match": {"userMessage": "Hello!"}, "response": {"content": "Hi there!"}},
]


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with aimock(FIXTURES, tmp_path_factory.mktemp("aimock")) as url:
        yield url


def history(count: int) -> list[Message]:
    said: list[Message] = []
    for number in range(count):
        said.append({"role": "assistant" if number % 2 else "user", "content": [{"text": f"m{number}"}]})
    return said


def shown(agent: Agent) -> list[str]:
    return [text_of(message) for message in agent.messages]


def test_a_third_of_what_is_shown_is_summarised_by_the_agents_own_model() -> None:
    model = NarrowModel(20)
    agent = Agent(
        model, messages=history(20), callback_handler=None, conversation_manager=SummarizingConversationManager()
    )
    agent("go on")
    assert shown(agent) == ["SUMMARY", *[f"m{number}" for number in range(6, 20)], "go on", "answer to go on"]
    asked = next(call for call in model.calls if call.system_prompt == SUMMARY_PROMPT)
    assert all(f"m{number}" in text_of(asked.messages[0]) for number in range(6))
    assert "third person" in SUMMARY_PROMPT.lower() or "third-person" in SUMMARY_PROMPT.lower()


def test_ratio_and_recent_messages_are_set() -> None:
    conversation_manager = SummarizingConversationManager(
        summary_ratio=0.3,  # Summarize 30% of messages when context reduction is needed
        preserve_recent_messages=10,  # Always keep 10 most recent messages
    )
    agent = Agent(
        NarrowModel(20), messages=history(20), callback_handler=None, conversation_manager=conversation_manager
    )
    agent("go on")
    assert shown(agent)[0] == "SUMMARY"
    assert shown(agent)[-11:-1] == [*[f"m{number}" for number in range(11, 20)], "go on"]


def test_a_prompt_of_ones_own_is_the_system_prompt_of_the_summary() -> None:
    custom_system_prompt = "You are summarizing a technical conversation."
    conversation_manager = SummarizingConversationManager(summarization_system_prompt=custom_system_prompt)
    model = NarrowModel(20)
    agent = Agent(model, messages=history(20), callback_handler=None, conversation_manager=conversation_manager)
    agent("go on")
    assert [call.system_prompt for call in model.calls].count(custom_system_prompt) == 1


@pytest.mark.usefixtures("no_keys")
@pytest.mark.filterwarnings("ignore:The model:DeprecationWarning")  # The sample's model has grown old.
def test_a_cheaper_agent_writes_the_summary(peer: str) -> None:
    summarization_model = AnthropicModel(
        model_id="claude-3-5-haiku-20241022",  # More cost-effective for summarization
        max_tokens=1000,
        params={"temperature": 0.1},  # Low temperature for consistent summaries
        client_args={"base_url": peer, "api_key": "key"},
    )
    custom_summarization_agent = Agent(model=summarization_model, callback_handler=None)
    conversation_manager = SummarizingConversationManager(
        summary_ratio=0.4, preserve_recent_messages=8, summarization_agent=custom_summarization_agent
    )
    agent = Agent(
        NarrowModel(20), messages=history(20), callback_handler=None, conversation_manager=conversation_manager
    )
    agent("go on")
    assert shown(agent)[0] == "- They counted."
    assert shown(agent)[1] == "m8"


@pytest.mark.parametrize(
    "conversation_manager",
    [
        SlidingWindowConversationManager(window_size=50, proactive_compression={"compression_threshold": 0.7}),
        SummarizingConversationManager(proactive_compression=True),
    ],
    ids=lambda manager: manager.name,
)
def test_compression_ahead_of_need_knows_the_documented_model(
    peer: str, aws_environment: None, conversation_manager: ConversationManager
) -> None:
    agent = Agent(
        model=BedrockModel(model_id="anthropic.claude-sonnet-4-6-v1:0", endpoint_url=peer, region_name="us-east-1"),
        conversation_manager=conversation_manager,
        callback_handler=None,
    )
    estimates: list[int | None] = []
    agent.add_hook(lambda event: estimates.append(event.projected_input_tokens), BeforeModelCallEvent)
    assert str(agent("Hello!")) == "Hi there!"
    assert agent.model.context_window_limit == 1_000_000
    assert conversation_manager.compression_threshold == 0.7
    assert estimates[0] is not None
    assert 0 < estimates[0] < 100


def test_the_window_of_an_unknown_model_is_set_by_hand() -> None:
    model = BedrockModel(model_id="my-custom-model", context_window_limit=128_000)
    assert model.context_window_limit == 128_000


class Last10MessagesManager(ConversationManager):
    def apply_management(self, agent: Any, **kwargs: Any) -> None:
        pass

    def reduce_context(self, agent: Any, e: Any = None, **kwargs: Any) -> None:
        if len(agent.messages) <= 10:
            raise e or RuntimeError("nothing to leave out")
        del agent.messages[: len(agent.messages) - 10]


def test_a_manager_of_ones_own_shortens_when_the_window_is_full() -> None:
    agent = Agent(
        NarrowModel(12), messages=history(20), callback_handler=None, conversation_manager=Last10MessagesManager()
    )
    agent("go on")
    assert shown(agent) == [*[f"m{number}" for number in range(11, 20)], "go on", "answer to go on"]
