"""A cassette in tests of agents: what it does at its block's ends, in threads, without keys, and beside another one."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import httpx
import httpx2
import pytest

from repertory import Agent, AnthropicModel, BedrockModel, OpenAIModel, tool
from repertory.core.messages import Message
from repertory.errors import CassetteMismatch, Failed, Invalid, NotFound, Retryable
from repertory.testing.cassette import Cassette, CassetteRule
from tests.backends.models.cassette_adapters import ADAPTERS, BEDROCK, NOWHERE, events_of
from tests.backends.models.sdk_services import anthropic_text, block, message_end, message_start
from tests.backends.models.wire_server import Exchange, Handler, wire_server

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("no_keys", "aws_environment")]
ANTHROPIC = ADAPTERS[0]
KEY = "sesame-of-the-test-1234"


@pytest.fixture
def aws_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials of AWS, and none to be found."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment that says nothing about model services."""
    for name in list(os.environ):
        if name.upper().startswith(("ANTHROPIC_", "OPENAI_")) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "one.json"


@contextmanager
def serving(handler: Handler) -> Any:
    """A server in a thread of its own, for synchronous tests."""
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(wire_server(handler)) as server,
    ):
        yield server


def anthropic(url: str | None = None, **config: Any) -> AnthropicModel:
    """A model whose connections end with each answer: the loop of a synchronous call never closes a model."""
    client = httpx2.AsyncClient(limits=httpx2.Limits(max_keepalive_connections=0))
    arguments: dict[str, Any] = {"api_key": KEY, "http_client": client}
    if url is None:
        del arguments["api_key"]
    else:
        arguments["base_url"] = url
    return AnthropicModel(client_args=arguments, **config)


def asked(url: str, prompt: str = "Hi") -> str:
    """The answer of an agent that is called from synchronous code."""
    with Agent(anthropic(url), callback_handler=None) as agent:
        return str(agent(prompt)).strip()


def recorded(path: Path, *prompts: str) -> None:
    with serving(ANTHROPIC.says_hello) as server, Cassette(path, mode="record"):
        for prompt in prompts or ("Hi",):
            asked(server.url, prompt)


def bodies(path: Path) -> list[Any]:
    return [each["request"]["json"] for each in json.loads(path.read_text())["interactions"]]


# ---------------------------------------------------------------------------------------------------------- the agent


def test_a_synchronous_call_of_an_agent_is_recorded_and_replayed(path: Path) -> None:
    recorded(path)
    with Cassette(path) as cassette:
        assert asked(NOWHERE) == "Hello"
        assert [request["json"] for request in cassette.requests] == bodies(path)


def test_an_agent_with_tools_replays_its_whole_turn(path: Path) -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": '{"a": 1, "b": 2}'}
    calls = [message_start(), *block(0, use, delta), *message_end("tool_use")]

    async def answers(exchange: Exchange) -> None:
        await exchange.stream(
            *(calls if len(exchange.body["messages"]) == 1 else anthropic_text("3")), media=ANTHROPIC.media
        )

    @tool
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    def turn(url: str) -> list[Message]:
        with Agent(anthropic(url), tools=[add], callback_handler=None) as agent:
            agent("1 + 2?")
            return list(agent.messages)

    with serving(answers) as server, Cassette(path, mode="record"):
        said = turn(server.url)
    with Cassette(path):
        heard = turn(NOWHERE)
    assert [message["content"] for message in heard] == [message["content"] for message in said]
    assert len(said) == 4


@pytest.mark.parametrize("prompt", ["Ho", "The prompt is too long, try again later: 429"])
def test_an_agent_that_asks_something_else_gets_the_difference_at_once(path: Path, prompt: str) -> None:
    recorded(path)
    with pytest.raises(CassetteMismatch, match="not on the cassette"), Cassette(path) as cassette:
        with pytest.raises(CassetteMismatch, match=r"(?s)- .*Hi.*\+ .*") as caught:
            asked(NOWHERE, prompt)
        assert isinstance(caught.value, Failed)
        assert not isinstance(caught.value, Retryable)
        assert prompt in str(caught.value)
        assert len(cassette.requests) == 1


def test_a_mismatch_that_the_program_swallows_is_raised_at_the_end(path: Path) -> None:
    recorded(path)
    with pytest.raises(CassetteMismatch) as caught, Cassette(path) as cassette, suppress(Failed):
        asked(NOWHERE, "Ho")
    assert str(cassette.mismatch) == str(caught.value)


def test_a_mismatch_that_became_another_error_is_its_note(path: Path) -> None:
    recorded(path)
    with pytest.raises(KeyError) as caught, Cassette(path):
        try:
            asked(NOWHERE, "Ho")
        except Failed:
            raise KeyError("answer") from None
    assert "not on the cassette" in caught.value.__notes__[0]


@pytest.mark.anyio
async def test_a_replay_needs_no_real_clock(path: Path, anyio_backend: object) -> None:
    async with wire_server(ANTHROPIC.says_hello) as server, Cassette(path, mode="record"):
        await events_of(anthropic(server.url))
    async with Cassette(path):
        assert await events_of(anthropic(NOWHERE))


@pytest.mark.anyio
@pytest.mark.parametrize("begun", [False, True], ids=["before it began", "within it"])
async def test_an_answer_that_the_program_gave_up_is_given_up_again(path: Path, begun: bool) -> None:
    async def hangs(exchange: Exchange) -> None:
        if begun:
            await exchange.begin(ANTHROPIC.media)
            await exchange.send(*ANTHROPIC.pieces[:2])
        reached.set()
        await exchange.until_closed()

    async def gives_up(url: str, cassette: Cassette) -> bool:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(events_of, anthropic(url))
                with anyio.fail_after(20):
                    await reached.wait()
                    while not cassette.requests:
                        await anyio.lowlevel.checkpoint()
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        return scope.cancelled_caught

    reached = anyio.Event()
    async with wire_server(hangs) as server, Cassette(path, mode="record") as cassette:
        assert await gives_up(server.url, cassette)
    interaction = (await recorded_in(path))[0]
    assert "error" not in interaction
    assert ("response" in interaction) is begun
    async with Cassette(path) as cassette:
        assert await gives_up(NOWHERE, cassette)


async def recorded_in(path: Path) -> list[Any]:
    found: list[Any] = json.loads(await anyio.Path(path).read_text())["interactions"]
    return found


# --------------------------------------------------------------------------------------------------------------- modes


def test_a_missing_file_is_told_with_what_to_do(path: Path) -> None:
    with pytest.raises(NotFound, match="mode='record'"), Cassette(path):
        pass
    with Cassette(path, mode="record"):  # nothing of the failed one is in the way
        pass


def test_auto_records_once_and_replays_then(path: Path) -> None:
    with serving(ANTHROPIC.says_hello) as server:
        for _ in range(3):
            with Cassette(path, mode="auto") as cassette:
                assert asked(server.url) == "Hello"
                assert cassette.is_recording is (len(server.requests) == 1 and not path.exists())
        assert len(server.requests) == 1


def test_record_writes_the_file_anew(path: Path) -> None:
    recorded(path, "one", "two")
    recorded(path, "three")
    assert [body["messages"][0]["content"][0]["text"] for body in bodies(path)] == ["three"]


def test_a_block_that_fails_writes_nothing(path: Path) -> None:
    recorded(path)
    before = path.read_bytes()
    with serving(ANTHROPIC.says_hello) as server, pytest.raises(KeyError), Cassette(path, mode="record"):
        asked(server.url, "Ho")
        raise KeyError
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_cancelled_block_writes_nothing(path: Path) -> None:
    async def cancelled() -> None:
        with anyio.CancelScope() as scope:
            async with Cassette(path, mode="record"):
                scope.cancel()
                await anyio.sleep_forever()

    for backend in ("asyncio", "trio"):
        anyio.run(cancelled, backend=backend)
        assert not path.exists()


@pytest.mark.parametrize("mode", ["record", "auto", "replay"])
def test_a_path_that_no_file_can_have_is_refused_at_the_start(path: Path, mode: Any) -> None:
    path.mkdir()
    entered = False
    with pytest.raises(Invalid, match=r"cannot be (written|read).*one\.json"), Cassette(path, mode=mode):
        entered = True
    (path / "file").write_text("")
    below_a_file = Cassette(path / "file" / "more" / "two.json", mode=mode)
    with pytest.raises(Invalid, match=r"cannot be (written|read).*two\.json"), below_a_file:
        entered = True
    assert not entered
    with Cassette(path.with_name("three.json"), mode="record"):  # nothing of the failed ones is in the way
        pass


def test_requests_that_were_not_made_are_told_unless_they_may_be_left(path: Path) -> None:
    recorded(path, "one", "two")
    with pytest.raises(CassetteMismatch, match=r"did not make 1 of 2[^\n]*\n +POST http"), Cassette(path):
        asked(NOWHERE, "two")
    with Cassette(path, strict=False):
        asked(NOWHERE, "one")
    with Cassette(path) as cassette:
        cassette.discard()


def test_a_cassette_object_may_be_used_again(path: Path) -> None:
    recorded(path)
    cassette = Cassette(path)
    for _ in range(2):
        with cassette:
            assert asked(NOWHERE) == "Hello"


@pytest.mark.parametrize("mode", ["record", "auto"])
def test_a_second_cassette_in_the_process_is_refused(path: Path, mode: Any) -> None:
    with Cassette(path, mode="record"):
        with pytest.raises(Invalid, match="another cassette is open"), Cassette(path.with_name("two.json"), mode=mode):
            pass
        with pytest.raises(Invalid, match="another cassette is open"):
            anyio.run(Cassette(path).__aenter__)
    with Cassette(path):
        pass


def test_after_the_block_the_libraries_and_the_environment_are_as_before(path: Path) -> None:
    before = [library.AsyncHTTPTransport.handle_async_request for library in (httpx, httpx2)], dict(os.environ)
    with Cassette(path, mode="record"):
        assert httpx.AsyncHTTPTransport.handle_async_request is not before[0][0]
    assert (
        [library.AsyncHTTPTransport.handle_async_request for library in (httpx, httpx2)],
        dict(os.environ),
    ) == before


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"mode": "once"}, "'replay', 'record' or 'auto'"),
        ({"match": ["headers"]}, "method, path, body, host, query"),
        ({"match": []}, "method, path"),
        ({"match": "body"}, "method, path"),
        ({"ignore": "metadata"}, "`ignore` is a list"),
        ({"ignore": ["."]}, "joined by dots"),
        ({"redact": "Jane"}, "`redact` is a list"),
        ({"ignore_hosts": "localhost"}, "`ignore_hosts` is a list"),
    ],
)
def test_settings_that_make_no_sense_are_refused(path: Path, settings: dict[str, Any], match: str) -> None:
    with pytest.raises(Invalid, match=match):
        Cassette(path, **settings)


def test_a_damaged_file_is_told_with_its_name(path: Path) -> None:
    path.write_text("{")
    with pytest.raises(Invalid, match=r"no cassette.*one\.json"), Cassette(path):
        pass


def test_a_body_that_differs_in_an_ignored_field_is_the_same(path: Path) -> None:
    def ask(url: str, user: str) -> None:
        model = anthropic(url, params={"metadata": {"user_id": user}})
        with Agent(model, callback_handler=None) as agent:
            agent("Hi")

    with serving(ANTHROPIC.says_hello) as server, Cassette(path, mode="record"):
        ask(server.url, "a")
    with Cassette(path, ignore=["metadata.user_id"]):
        ask(NOWHERE, "b")


# ------------------------------------------------------------------------------------------------------------- secrets


def test_keys_are_neither_needed_for_a_replay_nor_in_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def echoes(exchange: Exchange) -> None:
        assert KEY in str(exchange.headers)  # releases of the SDK differ in which one
        text = f"your key is {KEY}"
        await exchange.stream(*anthropic_text(text, " and a-token-of-another-service"), media=ANTHROPIC.media)

    with serving(echoes) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        with Cassette(path, mode="record"), monkeypatch.context() as environment:
            environment.setenv("ANTHROPIC_API_KEY", KEY)
            environment.setenv("OTHER_SERVICE_TOKEN", "a-token-of-another-service")
            with Agent(anthropic(), callback_handler=None) as agent:
                agent(f"Do not tell {KEY}, nor another-name")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", NOWHERE)
    text = path.read_text()
    assert KEY not in text
    assert "a-token-of-another-service" not in text
    assert json.loads(text)["keys"] == ["ANTHROPIC_API_KEY"]
    with Cassette(path), Agent(anthropic(), callback_handler=None) as agent:
        assert str(agent("Do not tell REDACTED, nor another-name")).strip() == "your key is REDACTED and REDACTED"
    assert "ANTHROPIC_API_KEY" not in os.environ


@pytest.mark.anyio
async def test_a_replay_of_bedrock_needs_no_credentials(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arn = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/x"
    with monkeypatch.context() as environment:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            environment.setenv(name, f"{name}-planted")
        environment.setenv("AWS_REGION", "eu-central-1")
        async with wire_server(BEDROCK.says_hello) as server, Cassette(path, mode="record"):
            said = await events_of(BedrockModel(endpoint_url=server.url, model_id=arn))
    text = await anyio.Path(path).read_text()
    assert "planted" not in text
    assert "123456789012" not in text
    assert "AWS4-HMAC" not in text
    async with Cassette(path):
        assert await events_of(BedrockModel(endpoint_url=NOWHERE, model_id=arn)) == said


@pytest.mark.anyio
async def test_a_replay_of_an_aws_host_needs_no_region_either(path: Path) -> None:
    asked = {"method": "POST", "url": "https://bedrock-runtime.eu-central-1.amazonaws.com/model/m/converse", "json": {}}
    text = json.dumps({"version": 1, "keys": ["AWS_REGION", "AWS_ACCESS_KEY_ID"], "interactions": [{"request": asked}]})
    await anyio.Path(path).write_text(text)
    async with Cassette(path, strict=False):
        assert os.environ["AWS_REGION"] == "eu-central-1"
        assert os.environ["AWS_ACCESS_KEY_ID"]
    assert "AWS_REGION" not in os.environ


@pytest.mark.parametrize(
    "rule", ["Jane Doe", pytest.param(lambda text: text.replace("Jane Doe", "REDACTED"), id="function")]
)
def test_what_the_user_redacts_is_in_no_file_and_may_differ_in_replays(path: Path, rule: CassetteRule) -> None:
    async def greets(exchange: Exchange) -> None:
        await exchange.stream(*anthropic_text("Hello, Jane Doe."), media=ANTHROPIC.media)

    with serving(greets) as server, Cassette(path, mode="record", redact=[rule]):
        assert asked(server.url, "I am Jane Doe.") == "Hello, Jane Doe."
    assert "Jane" not in path.read_text()
    with Cassette(path, redact=[rule]):
        assert asked(NOWHERE, "I am Jane Doe.") == "Hello, REDACTED."


def test_requests_show_no_secrets_while_they_are_recorded(path: Path) -> None:
    with serving(ANTHROPIC.says_hello) as server, Cassette(path, mode="record") as cassette:
        asked(server.url, f"My key is {KEY}")
        assert KEY not in json.dumps(cassette.requests)
        assert len(cassette.requests) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
async def test_clients_of_both_libraries_are_recorded_below_all_their_wrappers(path: Path, library: Any) -> None:
    class Wrapper(library.AsyncBaseTransport):  # type: ignore[misc, name-defined]
        inner = library.AsyncHTTPTransport()

        async def handle_async_request(self, request: Any) -> Any:
            request.headers["x-added"] = "1"
            return await self.inner.handle_async_request(request)

        async def aclose(self) -> None:
            await self.inner.aclose()

    async def ask(url: str) -> Any:
        async with library.AsyncClient(transport=Wrapper()) as client:
            answer = await client.post(f"{url}/a?key=hidden-in-the-url&alt=sse", json={"stream": False})
            return answer.status_code, answer.json()

    async with wire_server(ANTHROPIC.says_hello) as server, Cassette(path, mode="record"):
        said = await ask(server.url)
    assert "hidden-in-the-url" not in await anyio.Path(path).read_text()
    async with Cassette(path, match=["method", "path", "query"]):
        assert await ask(NOWHERE) == said


def test_openai_in_a_thread_of_its_own_is_replayed_too(path: Path) -> None:
    def model(url: str) -> OpenAIModel:
        return OpenAIModel(client_args={"base_url": f"{url}/v1", "api_key": KEY}, model_id="m")

    async def ask(url: str) -> list[Any]:
        return await events_of(model(url))

    with serving(ADAPTERS[1].says_hello) as server, Cassette(path, mode="record"):
        said = anyio.run(ask, server.url)
    with Cassette(path), anyio.from_thread.start_blocking_portal(backend="trio") as portal:
        assert portal.call(ask, NOWHERE) == said


async def gets(url: str, **arguments: Any) -> str:
    """The answer that a tool gets which asks a service by itself."""
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.post(url, **arguments)).text


@pytest.mark.anyio
async def test_what_one_exchange_held_does_not_hinder_the_others(path: Path) -> None:
    async def turn(url: str) -> list[str]:
        first = await gets(f"{url}/one", json={"text": "weather in Amsterdam-Noord, the-cookie-of-then"})
        return [first, await gets(f"{url}/two?city=Amsterdam-Noord&token=the-token-of-then", json={})]

    async def answers(exchange: Exchange) -> None:
        await exchange.answer(200, b"sunny", Set_Cookie="id=the-cookie-of-then; domain=.service.example; HttpOnly")

    async with wire_server(answers) as server, Cassette(path, mode="record"):
        heard = await turn(server.url)
    text = await anyio.Path(path).read_text()
    assert "of-then" not in text
    assert "city=Amsterdam-Noord&token=REDACTED" in text
    async with Cassette(path, match=["method", "path", "body", "query"]):
        assert await turn(NOWHERE) == heard


@pytest.mark.parametrize("then", [True, False], ids=["when recorded", "when replayed"])
def test_a_variable_of_one_environment_does_not_hinder_the_replay_in_another(
    path: Path, monkeypatch: pytest.MonkeyPatch, then: bool
) -> None:
    prompt = "Sum up the table eu_customers_2024."
    with serving(ANTHROPIC.says_hello) as server:
        for mode in ("record", "replay"):
            with monkeypatch.context() as environment, Cassette(path, mode=mode) as cassette:
                if (mode == "record") is then:
                    environment.setenv("TABLE_KEY", "eu_customers_2024")
                assert asked(server.url, prompt) == "Hello"
                assert ("eu_customers" in str(cassette.requests)) is ((mode == "record") is not then)
        assert len(server.requests) == 1


@pytest.mark.anyio
async def test_a_request_gets_the_recorded_one_that_is_the_same_before_one_that_fits(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter(range(9))

    async def counts(exchange: Exchange) -> None:
        await exchange.answer(200, str(next(numbers)).encode())

    words = ("the-word-of-one", "another")
    monkeypatch.setenv("WORD_KEY", words[0])
    async with wire_server(counts) as server, Cassette(path, mode="record"):
        assert [await gets(server.url, json=[word]) for word in words] == ["0", "1"]
    monkeypatch.delenv("WORD_KEY")
    async with Cassette(path):
        assert [await gets(NOWHERE, json=[word]) for word in words[::-1]] == ["1", "0"]


@pytest.mark.anyio
async def test_a_short_key_and_an_endpoint_of_the_environment_are_not_needed_for_a_replay(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model() -> OpenAIModel:
        return OpenAIModel(model_id="m")

    async with wire_server(ADAPTERS[1].says_hello) as server:
        with monkeypatch.context() as environment:
            environment.setenv("OPENAI_API_KEY", "ollama")
            environment.setenv("OPENAI_BASE_URL", f"{server.url}/v1/")
            environment.setenv("OTHER_ENDPOINT", "https://other.example")
            async with Cassette(path, mode="record"):
                heard = await events_of(model())
    file = json.loads(await anyio.Path(path).read_text())
    assert file["keys"] == ["OPENAI_API_KEY"]
    assert file["endpoints"] == {"OPENAI_BASE_URL": f"{server.url}/v1/"}
    async with Cassette(path, match=["method", "path", "host", "body"]):
        assert await events_of(model()) == heard
    assert "OPENAI_BASE_URL" not in os.environ
