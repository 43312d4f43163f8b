"""The service under real servers, with real clients that lose their connections, and servers that are stopped."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import anyio
import httpx
import pytest

from tests.service.asgi_client import ADA, AGENT, ASKS_EVENTS, Event, events_in, text_of
from tests.service.embedding_process import PATIENCE_S, Program, Server, serving
from tests.service.histories import read_histories

pytestmark = pytest.mark.real_time

APP = "tests.service.asgi_service:app"
SERVERS = ("uvicorn-asyncio", "uvicorn-uvloop", "hypercorn-trio")


class Http(httpx.Client):
    """A client of one server."""

    def __init__(self, server: Server, below: str = "") -> None:
        self.program: Program = server.program
        super().__init__(base_url=f"http://127.0.0.1:{server._port}{below}", timeout=PATIENCE_S)

    def say(self, text: str, session: str = "ada", **more: object) -> httpx.Response:
        """One turn."""
        return self.post(f"{AGENT}/sessions/{session}/turns", json={"prompt": text, **more})

    def told(self, session: str, body: dict[str, object], until: str, many: int = 1) -> list[Event]:
        """The events of a stream that is left when so many of that kind have come."""
        path, text = f"{AGENT}/sessions/{session}/turns", ""
        with self.stream("POST", path, json=body, headers=ASKS_EVENTS) as answer:
            for piece in answer.iter_text():
                text += piece
                if sum(event.kind == until for event in events_in(text)) >= many:
                    break
        return events_in(text)


@contextmanager
def served(name: str, folder: Path, below: str = "", **environment: str) -> Iterator[Http]:
    with serving(name, folder / "a.db", APP, **environment) as server, Http(server, below) as client:
        yield client


@pytest.fixture(scope="module", params=SERVERS)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    """Of a server that all tests share which do not stop it."""
    with served(request.param, tmp_path_factory.mktemp("served")) as client:
        yield client


def test_a_turn_is_answered_whole_and_event_by_event(client: Http) -> None:
    assert client.say("hello", "whole").json()["text"] == "done: hello"
    streamed = client.post(f"{AGENT}/sessions/told/turns", json={"prompt": "hello"}, headers=ASKS_EVENTS)
    told = events_in(streamed.text)
    assert text_of(told) == "done: hello"
    assert sum(event.kind == "data" for event in told) > 5
    assert told[-1].kind == "result"


def test_a_client_that_lost_its_connection_misses_nothing_and_hears_nothing_twice(client: Http) -> None:
    body: dict[str, object] = {"prompt": "slow one", "token": "t"}
    had = client.told("lost", body, "data", 3)
    answer = client.get(f"{AGENT}/sessions/lost/turns/t/events", headers={"last-event-id": had[-1].id or ""})
    more = events_in(answer.text)
    assert text_of([*had, *more]) == "done: slow one"
    assert more[-1].kind == "result"
    assert not {event.id for event in had} & {event.id for event in more}
    assert (
        client.get(f"{AGENT}/sessions/lost/turns/t/events", headers={"last-event-id": more[-1].id}).status_code == 204
    )


def test_from_every_place_where_a_stream_can_be_cut_off_the_rest_is_read(client: Http) -> None:
    whole = client.post(f"{AGENT}/sessions/cut/turns", json={"prompt": "hello", "token": "t"}, headers=ASKS_EVENTS).text
    expected, path = text_of(events_in(whole)), f"{AGENT}/sessions/cut/turns/t/events"
    for cut in range(0, len(whole), 41):
        had = events_in(whole[:cut])
        headers = {"last-event-id": had[-1].id or ""} if had else {}
        answer = client.get(path, headers=headers)
        assert text_of([*had, *events_in(answer.text)]) == expected, cut


def test_two_readers_of_one_turn_hear_the_same(client: Http) -> None:
    body: dict[str, object] = {"prompt": "slow two", "token": "t"}
    client.told("both", body, "data")
    with ThreadPoolExecutor() as pool:
        texts = pool.map(lambda _: client.get(f"{AGENT}/sessions/both/turns/t/events").text, range(3))
        assert {text_of(events_in(text)) for text in texts} == {"done: slow two"}


def test_an_id_that_was_never_given_is_refused_or_passed_over(client: Http) -> None:
    client.say("hello", "wrong", token="t")
    path = f"{AGENT}/sessions/wrong/turns/t/events"
    assert client.get(path, headers={"last-event-id": "1; DROP TABLE"}).status_code == 422
    for offset in ("99", "0.abc123.7", "1.abc123.99999", "99.end"):
        answer = client.get(path, headers={"last-event-id": offset})
        assert answer.status_code in (200, 204), answer.text
        assert not answer.text or events_in(answer.text)[-1].kind == "result"


def test_half_a_request_and_a_client_that_says_nothing_hold_up_nobody(client: Http) -> None:
    host, port = client.base_url.host, client.base_url.port
    assert port is not None
    with socket.create_connection((host, port)) as silent, socket.create_connection((host, port)) as half:
        head = f"POST {ADA}/turns HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        half.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        assert client.say("hello", "between").status_code == 200
        del silent


@pytest.mark.parametrize("name", ["uvicorn-asyncio", "hypercorn-trio"])
def test_it_is_mounted_in_an_application_that_enters_the_runtime(name: str, tmp_path: Path) -> None:
    with served(name, tmp_path, "/agents", MOUNTED="1") as client:
        answer = client.say("hello", token="t")
        assert answer.json()["text"] == "done: hello"
        assert client.get(answer.headers["content-location"].removeprefix("/agents")).status_code == 200
        assert client.get("/openapi.json").json()["servers"] == [{"url": "/agents"}]
        assert client.get("/readyz").status_code == 200
        client.program.signal(signal.SIGTERM)
        client.program.wait_for("closed")


@pytest.mark.parametrize("name", ["uvicorn-asyncio", "hypercorn-trio"])
def test_a_stream_that_sigterm_cuts_off_goes_on_in_the_next_process(name: str, tmp_path: Path) -> None:
    body: dict[str, object] = {"prompt": "slow " + "x" * 150, "token": "t"}
    with served(name, tmp_path) as client:
        had = client.told("ada", body, "data", 3)
        client.program.signal(signal.SIGTERM)
        client.program.wait_for("closed")
        assert client.program.exit_code() in {0, -signal.SIGTERM}
    with served(name, tmp_path) as client:
        answer = client.get(f"{ADA}/turns/t/events", headers={"last-event-id": had[-1].id or ""})
        assert text_of([*had, *events_in(answer.text)]) == f"done: {body['prompt']}"
    said = anyio.run(read_histories, tmp_path / "a.db", "helper", ["ada"])
    assert said == [[body["prompt"], f"done: {body['prompt']}"]]


@pytest.mark.parametrize("name", ["uvicorn-asyncio", "hypercorn-trio"])
def test_a_stream_that_sigkill_cuts_off_goes_on_in_the_next_process(name: str, tmp_path: Path) -> None:
    body: dict[str, object] = {"prompt": "slow one", "token": "t"}
    with served(name, tmp_path) as client:
        had = client.told("ada", body, "data", 3)
        client.program.kill()
    with served(name, tmp_path) as client:
        answer = client.get(f"{ADA}/turns/t/events", headers={"last-event-id": had[-1].id or ""})
        more = events_in(answer.text)
        assert text_of([*had, *more]) == "done: slow one"
        assert client.get(f"{ADA}/turns/t").json()["text"] == "done: slow one"
        assert len(client.get(f"{ADA}/messages").json()["messages"]) == 2


@pytest.mark.parametrize("name", ["uvicorn-asyncio", "hypercorn-trio"])
def test_a_turn_that_was_accepted_is_done_though_the_process_is_killed(name: str, tmp_path: Path) -> None:
    with served(name, tmp_path) as client:
        accepted = client.post(
            f"{ADA}/turns", json={"prompt": "slow one", "token": "t"}, headers={"prefer": "respond-async"}
        )
        assert accepted.status_code == 202
        client.program.kill()
    with served(name, tmp_path) as client:
        assert client.get(f"{accepted.headers['location']}?wait_s=30").json()["text"] == "done: slow one"
