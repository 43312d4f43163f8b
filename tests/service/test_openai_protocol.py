"""The OpenAI-compatible API, asked by the official client over loopback, on uvicorn and on Hypercorn with trio."""

from __future__ import annotations

import base64
import threading
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI

from repertory import ScriptedModel
from repertory.asgi import Caller, ServiceLimits, bearer_tokens
from repertory.core.messages import STOPPED_TEXT
from repertory.errors import ModelFailed, Throttled
from tests.service.protocol_servers import ASKS, LOOKS, SERVERS, TEXT, Shop, Typing, served

pytestmark = pytest.mark.real_time
PIXEL = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()
ACME, OTHER = "acme-secret-16-letters", "other-secret-16-letters"
TENANTS = bearer_tokens({ACME: Caller("acme", "ann"), OTHER: Caller("other", "bob")})


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def client_of(url: str, key: str = "none", **options: Any) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key=key, **{"max_retries": 0, **options})


def texts(call: Any) -> list[str]:
    return ["".join(block.get("text", "") for block in message["content"]) for message in call.messages]


def test_an_agent_is_a_model(tmp_path: Path, server: str) -> None:
    shop = Shop(tmp_path, "Hello!")
    with served(shop.app, server) as url, client_of(url) as client:
        assert [(model.id, model.owned_by) for model in client.models.list()] == [("helper", "repertory")]
        assert client.models.retrieve("helper").id == "helper"
        made = client.chat.completions.create(model="helper", messages=[{"role": "user", "content": "Hi"}])
        assert (made.choices[0].message.content, made.choices[0].finish_reason) == ("Hello!", "stop")
        assert made.usage is not None
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "Hi"}])
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_a_conversation_without_a_session_is_the_one_that_the_client_sends(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "Sure.")
    image: Any = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    with served(shop.app) as url, client_of(url) as client:
        for _ in range(2):
            client.chat.completions.create(
                model="helper",
                messages=[
                    {"role": "system", "content": "Be short."},
                    {"role": "user", "content": "One"},
                    {"role": "assistant", "content": "1"},
                    {"role": "user", "content": image},
                ],
            )
    first, second = shop.model.calls
    assert texts(first) == texts(second) == ["One", "1", "Instructions for this conversation:\nBe short.What is it?"]
    assert first.messages[-1]["content"][-1]["image"]["source"]["bytes"] == b"\x89PNG"


def test_a_stream_has_the_text_of_each_step_and_the_usage_at_its_end(tmp_path: Path, server: str) -> None:
    shop = Shop(tmp_path, LOOKS, "It costs 3.")
    with served(shop.app, server) as url, client_of(url) as client:
        chunks = list(
            client.chat.completions.create(
                model="helper",
                messages=[{"role": "user", "content": "Tea?"}],
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == "Let me see.\n\nIt costs 3."
    assert chunks[-1].usage is not None


def test_a_session_knows_what_was_said(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "one", "two", "three")
    with served(shop.app) as url, client_of(url) as client:
        for number, how in enumerate(
            ({"extra_body": {"conversation": "s1"}}, {"extra_headers": {"X-Session-ID": "s1"}})
        ):
            messages: Any = [{"role": "user", "content": "ignored"}, {"role": "assistant", "content": "ignored"}]
            messages.append({"role": "user", "content": f"new {number}"})
            client.chat.completions.create(model="helper", messages=messages, **how)
    assert texts(shop.model.calls[-1]) == ["new 0", "one", "new 1"]


def test_a_person_is_asked_and_answers_in_a_session(tmp_path: Path, server: str) -> None:
    shop = Shop(tmp_path, ASKS, "ordered", ASKS)
    with served(shop.app, server) as url, client_of(url) as client:

        def say(text: str, **more: Any) -> str:
            made = client.chat.completions.create(model="helper", messages=[{"role": "user", "content": text}], **more)
            return made.choices[0].message.content or ""

        assert say("tea", extra_body={"conversation": "s1"}) == "Input is needed. approve: tea"
        assert say("yes", extra_body={"conversation": "s1"}) == "ordered"
        with pytest.raises(openai.BadRequestError) as caught:
            say("tea")
        assert caught.value.code == "input_needed"
    results = [block["toolResult"] for block in shop.model.calls[1].messages[-1]["content"]]
    assert [result["content"] for result in results] == [[{"text": "tea: yes"}]]


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("n", 2, "unsupported_value"),
        ("logprobs", True, "unsupported_value"),
        ("tools", [{"type": "function", "function": {"name": "f"}}], "unsupported_value"),
        ("response_format", {"type": "json_object"}, "unsupported_value"),
        ("stop", ["x"], "unsupported_value"),
        ("colour", "red", "unknown_parameter"),
        ("stream", "yes", "invalid_type"),
    ],
)
def test_what_is_not_served_is_refused_by_name(tmp_path: Path, field: str, value: Any, code: str) -> None:
    shop = Shop(tmp_path, "Hello!")
    with served(shop.app) as url, client_of(url) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(
                model="helper", messages=[{"role": "user", "content": "Hi"}], extra_body={field: value}
            )
        assert (caught.value.param, caught.value.code) == (field, code)
        for messages in ([], [{"role": "assistant", "content": "Hi"}], [{"role": "tool", "content": "x"}], "Hi"):
            with pytest.raises(openai.BadRequestError):
                client.chat.completions.create(model="helper", messages=messages)  # type: ignore[arg-type]
    assert shop.asked == 0


def test_errors_are_those_that_the_client_knows(tmp_path: Path) -> None:
    shop = Shop(None, Throttled("slow down", retry_after_s=7), ModelFailed("no"), "ok", authenticate=TENANTS)
    ask: Any = {"model": "helper", "messages": [{"role": "user", "content": "Hi"}]}
    with served(shop.app) as url, client_of(url, ACME) as client, client_of(url) as nobody:
        with pytest.raises(openai.AuthenticationError):
            nobody.models.list()
        with pytest.raises(openai.RateLimitError) as limited:
            client.chat.completions.create(**ask)
        assert limited.value.response.headers["retry-after"] == "7"
        with pytest.raises(openai.InternalServerError) as failed:
            client.chat.completions.create(**ask)
        assert failed.value.type == "server_error"
        assert client.chat.completions.create(**ask, stream=False).choices[0].message.content == "ok"
    shop = Shop(None, "ok", limits=ServiceLimits(burst=1, rate_per_s=0.001))
    with served(shop.app) as url, client_of(url) as client:
        client.models.list()
        with pytest.raises(openai.RateLimitError):
            client.models.list()


class Losing:
    """Loses requests, or the answers to those that have arrived, as a network does; then lets them through."""

    def __init__(self, losses: int, *, arrive: bool) -> None:
        self.left = losses
        self.arrive = arrive
        self.sent: list[httpx2.Request] = []

    def client(self) -> httpx2.Client:
        losing = self

        class Lossy(httpx2.HTTPTransport):
            def handle_request(self, request: httpx2.Request) -> httpx2.Response:
                losing.sent.append(request)
                lost, losing.left = losing.left > 0, max(losing.left - 1, 0)
                if not lost or losing.arrive:
                    response = super().handle_request(request)
                if lost:
                    raise httpx2.ReadTimeout("lost", request=request)
                return response

        return httpx2.Client(transport=Lossy())


@pytest.mark.parametrize("key", [None, "order-17"])
@pytest.mark.parametrize("session", [None, "s1"])
def test_a_request_that_the_client_sends_again_is_one_turn(
    tmp_path: Path, server: str, key: str | None, session: str | None
) -> None:
    shop, losing = Shop(tmp_path, "first", "second"), Losing(2, arrive=key is not None)
    headers = {} if key is None else {"Idempotency-Key": key}
    body = {} if session is None else {"conversation": session}
    with served(shop.app, server) as url, client_of(url, max_retries=3, http_client=losing.client()) as client:
        made = client.chat.completions.create(
            model="helper", messages=[{"role": "user", "content": "Hi"}], extra_headers=headers, extra_body=body
        )
        assert made.choices[0].message.content == "first"
        assert [request.headers["x-stainless-retry-count"] for request in losing.sent] == ["0", "1", "2"]
        assert shop.asked == 1
        losing.left = 1
        made = client.chat.completions.create(
            model="helper", messages=[{"role": "user", "content": "Hi"}], extra_headers=headers, extra_body=body
        )
        assert made.choices[0].message.content == ("second" if key is None else "first")


def test_a_request_that_is_sent_again_to_another_process_is_one_turn(tmp_path: Path) -> None:
    ask: Any = {"model": "helper", "messages": [{"role": "user", "content": "Hi"}]}
    again: Any = {"extra_headers": {"x-stainless-retry-count": "1"}, "extra_body": {"conversation": "s1"}}
    first = Shop(tmp_path, "first")
    with served(first.app) as url, client_of(url) as client:
        client.chat.completions.create(**ask, extra_body={"conversation": "s1"})
    second = Shop(tmp_path, "second")
    with served(second.app) as url, client_of(url) as client:
        made = client.chat.completions.create(**ask, **again)
    assert (made.choices[0].message.content, second.asked) == ("first", 0)


def test_a_response_goes_on_with_the_one_before(tmp_path: Path, server: str) -> None:
    shop = Shop(tmp_path, "one", "two", "three")
    with served(shop.app, server) as url, client_of(url) as client:
        first = client.responses.create(model="helper", input="A", instructions="Be short.", metadata={"k": "v"})
        assert (first.output_text, first.status, first.metadata) == ("one", "completed", {"k": "v"})
        second = client.responses.create(model="helper", input="B", previous_response_id=first.id)
        assert second.conversation == first.conversation
        assert second.id != first.id
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="helper", input="C", previous_response_id=first.id)
        assert caught.value.code == "previous_response_not_latest"
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="helper", input="C", previous_response_id="resp_unknown")
        assert caught.value.code == "previous_response_not_found"
        third = client.responses.create(model="helper", input="C", conversation="s9")
        fetched = client.responses.retrieve(third.id)
        assert (fetched.output_text, fetched.conversation) == (third.output_text, third.conversation)
        assert fetched.output == third.output
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve("resp_bm8")
    assert texts(shop.model.calls[1]) == ["Instructions for this conversation:\nBe short.A", "one", "B"]


def test_a_streamed_response_is_what_the_client_puts_together(tmp_path: Path, server: str) -> None:
    shop = Shop(tmp_path, LOOKS, "It costs 3.")
    with served(shop.app, server) as url, client_of(url) as client:
        with client.responses.stream(model="helper", input="Tea?", conversation={"id": "s1"}) as stream:
            kinds = [event.type for event in stream]
            made = stream.get_final_response()
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert [item.content[0].text for item in made.output] == ["Let me see.", "It costs 3."]  # type: ignore[union-attr]
        fetched = client.responses.retrieve(made.id)
        assert [item.id for item in fetched.output] == [item.id for item in made.output]
        events = list(client.responses.retrieve(made.id, stream=True, starting_after=3))
        assert events[-1].type == "response.completed"
        assert min(event.sequence_number for event in events) > 3


def test_a_question_is_a_function_call_that_is_answered_once(tmp_path: Path, server: str) -> None:
    shop = Shop(tmp_path, ASKS, "ordered", "again")
    with served(shop.app, server) as url, client_of(url) as client:
        asked = client.responses.create(model="helper", input="tea")
        call: Any = asked.output[-1]
        assert (call.type, call.name, call.arguments) == ("function_call", "approve", '{"reason": "tea"}')
        answer: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "yes"}]
        made = [
            client.responses.create(model="helper", input=answer, previous_response_id=asked.id).output_text
            for _ in range(2)
        ]
        assert made == ["ordered", "ordered"]
        with client.responses.stream(model="helper", input="tea", conversation="s2") as stream:
            assert stream.get_final_response().output_text == "again"
    assert shop.asked == 3


def test_a_response_in_the_background_goes_on_and_is_read_from_any_event(tmp_path: Path, server: str) -> None:
    shop = Shop(tmp_path, model=Typing())
    with served(shop.app, server) as url, client_of(url) as client:
        begun = client.responses.create(model="helper", input="Count.", background=True)
        assert begun.status == "in_progress"
        seen = []
        for event in client.responses.retrieve(begun.id, stream=True):
            seen.append(event)
            if len(seen) == 9:
                break
        after = seen[-1].sequence_number
        rest = list(client.responses.retrieve(begun.id, stream=True, starting_after=after))
        told = [event for event in [*seen, *rest] if event.type == "response.output_text.delta"]
        assert "".join(event.delta for event in told) == TEXT
        assert [event.sequence_number for event in [*seen, *rest]] == list(range(len(seen) + len(rest)))
        assert client.responses.retrieve(begun.id).output_text == TEXT
    assert shop.asked == 1


def test_a_response_that_was_stopped_keeps_what_was_read_and_is_cancelled_after_a_restart_too(tmp_path: Path) -> None:
    shop = Shop(tmp_path, model=Typing(pause_s=0.2))
    with served(shop.app) as url, client_of(url) as client:
        seen, response = "", ""
        with client.responses.create(model="helper", input="Count.", background=True, stream=True) as events:
            for event in events:
                if event.type == "response.created":
                    response = event.response.id
                if event.type == "response.output_text.delta":
                    if not seen:
                        assert client.responses.cancel(response).status == "cancelled"
                    seen += event.delta
        assert event.type == "response.incomplete"
        assert event.response.status == "cancelled"
        assert event.response.output_text == seen
        assert TEXT.startswith(seen.removesuffix(STOPPED_TEXT))
        assert seen.endswith(STOPPED_TEXT)
    with served(Shop(tmp_path).app) as url, client_of(url) as client:
        assert client.responses.retrieve(response).status == "cancelled"


def test_a_response_in_the_background_is_cancelled(tmp_path: Path) -> None:
    shop = Shop(tmp_path, model=Typing(pause_s=0.5))
    with served(shop.app) as url, client_of(url) as client:
        begun = client.responses.create(model="helper", input="Count.", background=True)
        assert client.responses.cancel(begun.id).status == "cancelled"
        assert client.responses.retrieve(begun.id).status == "cancelled"
        shop.model.pause_s = 0.0
        assert client.responses.create(model="helper", input="Go on.", conversation=begun.conversation.id).output_text  # type: ignore[union-attr,arg-type]
    assert shop.asked == 2


def test_a_response_in_the_background_that_fails_says_why_and_is_not_run_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path, ModelFailed("no"), "late")
    with served(shop.app) as url, client_of(url) as client:
        begun = client.responses.create(model="helper", input="Hi", background=True)
        while (found := client.responses.retrieve(begun.id)).status == "in_progress":
            pass
        assert (found.status, found.error.code) == ("failed", "server_error")  # type: ignore[union-attr]
        assert client.responses.retrieve(begun.id).status == "failed"
    assert shop.asked == 1


def test_a_turn_goes_on_when_the_client_of_a_stored_response_has_gone(tmp_path: Path, server: str) -> None:
    shop = Shop(tmp_path, model=Typing())
    with served(shop.app, server) as url, client_of(url) as client:
        stream = client.responses.create(model="helper", input="Count.", stream=True)
        created = next(iter(stream))
        stream.close()
        response_id = created.response.id  # type: ignore[union-attr]
        for event in client.responses.retrieve(response_id, stream=True):
            last = event
        assert last.response.output_text == TEXT  # type: ignore[union-attr]
    assert shop.asked == 1


def test_tenants_do_not_reach_each_others_responses_and_conversations(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "secret", "other", authenticate=TENANTS)
    with served(shop.app) as url, client_of(url, ACME) as acme, client_of(url, OTHER) as other:
        made = acme.responses.create(model="helper", input="A", conversation="s1")
        assert acme.responses.retrieve(made.id).output_text == "secret"
        assert acme.conversations.retrieve("s1").id == "s1"
        with pytest.raises(openai.NotFoundError):
            other.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            other.responses.cancel(made.id)
        with pytest.raises(openai.NotFoundError):
            other.conversations.retrieve("s1")
        with pytest.raises(openai.BadRequestError):
            other.responses.create(model="helper", input="B", previous_response_id=made.id)
        assert other.responses.create(model="helper", input="B", conversation="s1").output_text == "other"
    assert texts(shop.model.calls[1]) == ["B"]


def test_a_conversation_is_named_before_it_begins(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "one")
    with served(shop.app) as url, client_of(url) as client:
        named = client.conversations.create()
        with pytest.raises(openai.NotFoundError):
            client.conversations.retrieve(named.id)
        made = client.responses.create(model="helper", input="A", conversation=named.id)
        assert made.conversation is not None
        assert client.conversations.retrieve(made.conversation.id).created_at == named.created_at


def test_many_clients_at_once_get_their_own_answers(tmp_path: Path, server: str) -> None:
    def echo(messages: Any, tools: Any, system: Any) -> str:
        return str(messages[-1]["content"][-1]["text"]).upper()

    shop = Shop(tmp_path, model=ScriptedModel([echo], loop=True))
    answers: dict[int, str] = {}
    with served(shop.app, server) as url:

        def ask(number: int) -> None:
            with client_of(url) as client:
                made = client.responses.create(model="helper", input=f"n{number}", conversation=f"s{number % 3}")
                answers[number] = made.output_text

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == {number: f"N{number}" for number in range(12)}
