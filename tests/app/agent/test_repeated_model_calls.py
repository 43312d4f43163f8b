"""Model calls that break off and are made again while a client of a protocol listens: it has each word once, or an
error, and the answer when it asks again.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest
from pydantic import BaseModel

from repertory import (
    AfterModelCallEvent,
    AgentSpec,
    HookRegistry,
    Model,
    ModelRetryStrategy,
    ModelRouter,
    Runtime,
    ScriptedModel,
    SQLiteSessions,
)
from repertory.asgi import asgi_app
from repertory.errors import ModelStreamBroken
from tests.compat.test_a2a_protocol import answer, message, task_in, told
from tests.compat.test_a2a_protocol import run as run_a2a
from tests.plugins.guarded_model import GuardedModel, Verdict
from tests.service.protocol_servers import LIMITS, SERVERS, price, served
from tests.service.test_ag_ui_protocol import asked, in_node, needs_peer, run
from tests.service.test_openai_protocol import client_of

pytestmark = pytest.mark.real_time
FORTY, FIFTY = ["The answer ", "is forty"], ["It is ", "42."]
FORTY_TWO = ["The an", "swer is ", "forty-two."]
HI: Any = {"model": "helper", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Wire:
    """An application, and what it has sent."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._sent = b""
        self._waiting: list[tuple[bytes, anyio.Event]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def sending(event: Any) -> None:
            await send(event)
            self._sent += event.get("body", b"")
            for text, known in self._waiting:
                if text in self._sent:
                    known.set()

        await self._app(scope, receive, sending)

    async def has_sent(self, text: str) -> None:
        """Returns when a client has been sent this text since the last time."""
        known = anyio.Event()
        if text.encode() not in self._sent:
            self._waiting.append((text.encode(), known))
            await known.wait()
        self._sent, self._waiting = b"", []


class Breaks:
    """A try that breaks off behind these pieces, when a client has the last one. `thinks`: reasoning before them;
    `use`: the name of a tool whose use has begun then; `unsent`: no client is sent it.
    """

    def __init__(self, *pieces: str, thinks: str = "", use: str = "", unsent: bool = False) -> None:
        self.pieces, self.thinks, self.use = pieces, thinks, use
        self.last = "" if unsent else pieces[-1] if pieces else thinks


class TriedModel(Model):
    """Answers with each of its tries in turn: pieces of text, a `Breaks`, or the name and the input of a tool use."""

    def __init__(self, *tries: Any, awaited: Sequence[str] = ()) -> None:
        self.tries = list(tries)
        self.asked = 0
        self.awaited = awaited
        """Pieces of whole tries that a client has before the try goes on."""
        self.wire: Wire | None = None
        self.goes_on = threading.Event()
        """A try that is whole waits for this behind its first piece."""
        self.goes_on.set()

    async def stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        self.asked += 1
        each = self.tries.pop(0)
        yield {"messageStart": {"role": "assistant"}}
        if isinstance(each, Breaks):
            if each.thinks:
                yield {"contentBlockDelta": {"delta": {"reasoningContent": {"text": each.thinks}}}}
                yield {"contentBlockStop": {}}
            for piece in each.pieces:
                yield {"contentBlockDelta": {"delta": {"text": piece}}}
            if each.use:
                yield {"contentBlockStop": {}}
                yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": "void", "name": each.use}}}}
            if each.last:
                assert self.wire is not None
                await self.wire.has_sent(each.last)
            raise ModelStreamBroken("broken off")
        if isinstance(each, dict):
            yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": "t1", "name": "price"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"item": "tea"}'}}}}
        for piece in each if isinstance(each, list) else ():
            yield {"contentBlockDelta": {"delta": {"text": piece}}}
            await anyio.to_thread.run_sync(self.goes_on.wait, abandon_on_cancel=True)
            if self.wire is not None and piece in self.awaited:
                await self.wire.has_sent(piece)
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if isinstance(each, dict) else "end_turn"}}


class AskedTwice:
    """A hook that has the model answer again after its first answer."""

    def __init__(self) -> None:
        self.heard = 0

    def register_hooks(self, registry: HookRegistry) -> None:
        registry.add_callback(AfterModelCallEvent, self.after)

    def after(self, event: AfterModelCallEvent) -> None:
        self.heard += 1
        event.retry = self.heard == 1


def app_of(tmp_path: Path, model: Any, **options: Any) -> Any:
    runtime = Runtime(sessions=SQLiteSessions(tmp_path / "agents.db"))
    strategy = ModelRetryStrategy(transient_delay=0, initial_delay=0)
    runtime.agent(AgentSpec(name="helper", model=model, tools=[price], **{"retry_strategy": strategy, **options}))
    wire = Wire(asgi_app(runtime, limits=LIMITS))
    if isinstance(model, TriedModel):
        model.wire = wire
    return wire


def streamed(client: Any, **more: Any) -> tuple[str, Any]:
    """The text of a streamed completion, and the error that ended it."""
    text = ""
    try:
        for chunk in client.chat.completions.create(**HI, stream=True, **more):
            text += chunk.choices[0].delta.content or ""
    except openai.APIError as error:
        return text, error
    return text, None


def responded(client: Any, **more: Any) -> tuple[list[Any], Any]:
    """The events of a streamed response, and the final response; None when it has none."""
    with client.responses.stream(model="helper", input="Hi", **more) as stream:
        events = list(stream)
        try:
            return events, stream.get_final_response()
        except RuntimeError:
            return events, None


SESSION: dict[str, Any] = {"extra_body": {"conversation": "s1"}, "extra_headers": {"Idempotency-Key": "k1"}}


@pytest.mark.parametrize("more", [{}, SESSION])
def test_an_answer_that_is_begun_again_with_the_same_words_has_each_word_once(
    tmp_path: Path, server: str, more: dict[str, Any]
) -> None:
    model = TriedModel(Breaks(*FORTY), Breaks("The", use="price", unsent=True), FORTY_TWO, Breaks(*FORTY), FORTY_TWO)
    with served(app_of(tmp_path, model), server) as url, client_of(url) as client:
        assert streamed(client, **more) == ("The answer is forty-two.", None)
        events, final = responded(client, conversation="s2")
        fetched = client.responses.retrieve(final.id)
    assert final.output_text == fetched.output_text == "The answer is forty-two."
    assert [item.id for item in final.output] == [item.id for item in fetched.output]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == final.output_text
    assert model.asked == 5


def test_an_answer_that_is_begun_again_with_other_words_is_an_error_and_then_the_answer(
    tmp_path: Path, server: str
) -> None:
    model = TriedModel(Breaks(*FORTY), FIFTY)
    model.goes_on.clear()
    with served(app_of(tmp_path, model), server) as url, client_of(url) as client:
        text, error = streamed(client, **SESSION)
        assert (text, error.code, error.type) == ("The answer is forty", "answer_begun_again", "server_error")
        answers: list[Any] = []
        reader = threading.Thread(target=lambda: answers.append(streamed(client, **SESSION)))
        reader.start()  # The turn still runs: it is followed, from its beginning.
        model.goes_on.set()
        reader.join(30)
        assert answers == [("It is 42.", None)]
        assert streamed(client, **SESSION) == ("It is 42.", None)
    assert model.asked == 2


def test_a_completion_in_one_piece_never_has_void_words(tmp_path: Path) -> None:
    with served(app_of(tmp_path, TriedModel(Breaks(*FORTY, unsent=True), FIFTY))) as url, client_of(url) as client:
        assert client.chat.completions.create(**HI).choices[0].message.content == "It is 42."


def test_a_response_that_is_begun_again_with_other_words_has_its_answer_when_it_is_retrieved(
    tmp_path: Path, server: str
) -> None:
    model = TriedModel(Breaks(*FORTY), FIFTY)
    with served(app_of(tmp_path, model), server) as url, client_of(url) as client:
        events, final = responded(client)
        assert final is None
        assert (events[-1].type, events[-1].code) == ("error", "answer_begun_again")
        assert not any(event.type == "response.output_text.done" for event in events)
        response_id = events[0].response.id
        while (found := client.responses.retrieve(response_id)).status == "in_progress":
            pass
        assert (found.status, found.output_text) == ("completed", "It is 42.")
        *_, last = client.responses.retrieve(response_id, stream=True)
        assert last.response.output_text == "It is 42."
    assert model.asked == 2


def test_a_response_in_the_background_is_read_on_by_a_client_that_has_no_void_words(tmp_path: Path) -> None:
    model = TriedModel(Breaks(*FORTY, unsent=True), FIFTY)
    model.goes_on.clear()
    with served(app_of(tmp_path, model)) as url, client_of(url) as client:
        begun = client.responses.create(model="helper", input="Hi", background=True)
        while model.asked < 2:
            client.responses.retrieve(begun.id)
        events = iter(client.responses.retrieve(begun.id, stream=True))
        first = [next(events).type for _ in range(5)]
        assert first[-1] == "response.output_text.delta"
        # This one may have void words: it has an event of the answer, and nobody knows of which try.
        (error,) = client.responses.retrieve(begun.id, stream=True, starting_after=4)
        assert (error.type, error.sequence_number) == ("error", 5)
        model.goes_on.set()
        *_, last = events
        assert last.response.output_text == "It is 42."


def test_reasoning_that_is_void_is_an_incomplete_item_and_the_answer_is_whole(tmp_path: Path) -> None:
    model = TriedModel(Breaks(thinks="Hm", unsent=True), FIFTY, Breaks(thinks="Hm"), FIFTY)
    with served(app_of(tmp_path, model)) as url, client_of(url) as client:
        assert streamed(client) == ("It is 42.", None)
        events, final = responded(client)
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [(item.type, item.status) for item in done] == [("reasoning", "incomplete"), ("message", "completed")]
    assert [item.id for item in final.output] == [item.id for item in done]
    assert final.output_text == "It is 42."


def test_words_before_a_tool_call_that_is_begun_again_are_said_once(tmp_path: Path) -> None:
    model = TriedModel(Breaks("Let me ", use="price"), {"price": "tea"}, ["Let me ", "see: 3."])
    with served(app_of(tmp_path, model)) as url, client_of(url) as client:
        assert streamed(client) == ("Let me see: 3.", None)


ROUTED: list[Callable[[], tuple[Any, dict[str, Any]]]] = [
    lambda: (TriedModel(FORTY, FIFTY, awaited=FORTY), {"hooks": [AskedTwice()]}),
    lambda: routed(TriedModel(Breaks(*FORTY)), TriedModel(FIFTY)),
]


def routed(*models: Model) -> tuple[Any, dict[str, Any]]:
    """The first of the models, and what has the others asked after it."""
    return models[0], {"plugins": [ModelRouter(models)], "retry_strategy": None}


@pytest.mark.parametrize("made", ROUTED, ids=["a hook asks again", "another model is asked"])
def test_whoever_asks_again_voids_the_words_before(
    tmp_path: Path, made: Callable[[], tuple[Any, dict[str, Any]]]
) -> None:
    for number, way in enumerate(("chat", "responses", "a2a", "ag-ui")):
        model, options = made()
        folder = tmp_path / str(number)
        folder.mkdir()
        with served(app_of(folder, model, **options)) as url, client_of(url) as client:
            match way:
                case "chat":
                    text, error = streamed(client)
                    assert (text, error.code) == ("The answer is forty", "answer_begun_again")
                case "responses":
                    events, final = responded(client)
                    assert (final, events[-1].type) == (None, "error")
                case "a2a":
                    assert a2a_answer(url) == "It is 42."
                case _:
                    assert ag_ui_texts(run(url, asked("Hi"))) == ["It is 42."]


class Form(BaseModel):
    """An answer in a form."""

    number: int


@pytest.mark.parametrize("first", [["It is ", "42."], ['{"number"', ": 42}"]])
def test_an_answer_that_is_asked_for_again_in_a_form_spoils_no_stream(tmp_path: Path, first: list[str]) -> None:
    form = {"toolUse": {"name": "Form", "input": {"number": 42}}}
    model = ScriptedModel(["".join(first), form] * 4, chunk=4)
    with served(app_of(tmp_path, model, structured_output_model=Form)) as url, client_of(url) as client:
        text, error = streamed(client)
        assert (text.split("\n\n")[0], error) == ("".join(first), None)
        _, final = responded(client)
        assert final.output[0].content[0].text == "".join(first)
        assert final.output_text == client.responses.retrieve(final.id).output_text


def test_an_answer_that_a_guardrail_takes_back_is_an_error_that_says_so(tmp_path: Path) -> None:
    model = GuardedModel(*[Verdict("my secret", assistant="[blocked]")] * 4)
    with served(app_of(tmp_path, model)) as url, client_of(url) as client:
        text, error = streamed(client)
        assert (text, error.code) == ("my secret", "content_filter")
        events, final = responded(client)
        assert (final, events[-1].code) == (None, "content_filter")
        assert client.responses.retrieve(events[0].response.id).output_text == "[blocked]"
        assert a2a_answer(url) == "[blocked]"
        assert ag_ui_texts(run(url, asked("Hi"))) == ["[blocked]"]


def a2a_answer(url: str) -> str:
    """The answer that the official client of A2A has at the end."""
    found: list[str] = []

    async def work(client: Any) -> None:
        found.append(answer(task_in(await told(client, message("Hi")))))

    run_a2a(url, work)
    return found[0]


def ag_ui_texts(events: list[dict[str, Any]]) -> list[str]:
    """The texts of the agent that a page has at the end."""
    thread: dict[str, str] = {}
    for event in events:
        match event:
            case {"type": "TEXT_MESSAGE_CONTENT", "messageId": name, "delta": piece}:
                thread[name] = thread.get(name, "") + piece
            case {"type": "MESSAGES_SNAPSHOT", "messages": messages}:
                thread = {each["id"]: each["content"] for each in messages if each["role"] == "assistant"}
            case _:
                pass
    return list(thread.values())


@pytest.mark.parametrize("second", [FORTY_TWO, FIFTY])
def test_a_task_and_a_run_have_the_answer_alone(tmp_path: Path, server: str, second: list[str]) -> None:
    model = TriedModel(Breaks(*FORTY), second, Breaks(*FORTY), second)
    with served(app_of(tmp_path, model), server) as url:
        assert a2a_answer(url) == "".join(second)
        assert ag_ui_texts(run(url, asked("Hi"))) == ["".join(second)]


@needs_peer
def test_the_official_client_of_a_page_has_no_void_words_at_the_end(tmp_path: Path) -> None:
    broken = Breaks(*FORTY, use="price")
    model = TriedModel(broken, {"price": "tea"}, FIFTY, broken, broken, broken, FIFTY)
    with served(app_of(tmp_path, model)) as url:
        first, failed, last = in_node(url, {"say": "Hi"}, {"say": "And now?"}, {"say": "Well?"})
    assert [each["role"] for each in first["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert first["messages"][-1]["content"] == "It is 42."
    assert "error" in failed or failed["events"][-1]["type"] == "RUN_ERROR"
    said = [each["content"] for each in last["messages"] if each["role"] == "assistant" and each.get("content")]
    assert said == ["It is 42.", "(This message was not answered: the turn ended early.)", "It is 42."]
