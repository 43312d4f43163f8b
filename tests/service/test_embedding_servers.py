"""The example service under real servers: what its clients see, and what is left when it is stopped."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock

import anyio
import pytest

from repertory.core.messages import STOPPED_TEXT
from tests.service.embedding_process import SERVERS, Answer, Server, serving
from tests.service.histories import check_history, read_histories

pytestmark = pytest.mark.real_time

STOPPED = {"uvicorn-asyncio": -signal.SIGTERM, "uvicorn-uvloop": -signal.SIGTERM, "hypercorn-trio": 0}
"""How each server ends after SIGTERM: uvicorn hands the signal on when it is done."""
LOST = {"uvicorn-asyncio": -signal.SIGTERM, "hypercorn-trio": 0}
"""How each ends after the runtime has sent SIGTERM to its own process, which is Hypercorn's only worker."""


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that all tests share which do not stop it."""
    with serving(request.param, tmp_path_factory.mktemp("served") / "a.db") as server:
        yield server


def histories(database: Path, *sessions: str) -> list[list[str]]:
    return anyio.run(read_histories, database, "helper", sessions)


def events(text: str) -> list[tuple[str, object]]:
    """Server-sent events: kind and data."""
    found: list[tuple[str, object]] = []
    for block in filter(None, text.split("\n\n")):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        found.append((fields.get("event", "message"), json.loads(fields["data"])))
    return found


@contextmanager
def streaming(server: Server, session: str, text: str) -> Iterator[None]:
    """A client that has heard the beginning of an answer, and leaves at the end of the block."""
    with closing(server.connect()) as connection:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/sessions/{session}/stream", json.dumps({"text": text}), headers)
        with closing(connection.getresponse()) as response:
            assert response.readline().startswith(b"data: ")
            yield


# ------------------------------------------------------------------------------------------------ what clients see


def test_a_message_is_answered_and_kept(server: Server) -> None:
    assert server.say("kept", "hello") == Answer(200, {"text": "done: hello", "stop_reason": "end_turn"})
    kept = server.get("/sessions/kept/messages")
    assert [message["content"][0]["text"] for message in kept.body] == ["hello", "done: hello"]


def test_a_turn_can_be_read_as_it_happens(server: Server) -> None:
    answer = server.post("/sessions/read/stream", {"text": "hello"})
    *pieces, end = events(answer.body)
    assert "".join(str(data) for _, data in pieces) == "done: hello"
    assert len(pieces) > 1
    assert end == ("end", "end_turn")


def test_errors_become_statuses_that_say_what_to_do_next(server: Server) -> None:
    throttled = server.say("errors", "throttled")
    assert (throttled.status, throttled.retry_after, throttled.body["error"]) == (429, "7", "Throttled")
    assert (down := server.say("errors", "down")).status == 503
    assert down.retry_after is not None
    assert server.say("n" * 300, "hello").body["error"] == "Invalid"
    assert server.say("n" * 300, "hello").status == 422
    assert server.post("/sessions/errors/messages", {"text": 1}).status == 422
    assert server.get("/sessions/nobody/messages").status == 404


def test_an_error_in_the_middle_of_a_stream_is_its_last_event(server: Server) -> None:
    answer = server.post("/sessions/torn/stream", {"text": "throttled"})
    kind, told = events(answer.body)[-1]
    assert (kind, told["error"]) == ("error", "Throttled")
    assert "wait, then try again" in told["detail"]


def test_a_second_message_while_a_turn_runs_is_refused(server: Server) -> None:
    with streaming(server, "busy", "endless busy"):
        refused = server.say("busy", "hello")
        assert (refused.status, refused.body["error"]) == (409, "AgentBusy")


def test_health_is_said_with_the_counters(server: Server) -> None:
    assert server.get("/healthz").status == 200
    assert server.get("/healthz").body["actors"] >= 1


def test_a_client_that_leaves_in_the_middle_of_a_stream_ends_its_turn_and_leaves_a_valid_history(
    server: Server,
) -> None:
    with streaming(server, "left", "endless left"):
        pass
    server.program.wait_for("ended endless left")
    while (answer := server.say("left", "hello")).status == 409:
        pass  # the turn's last records are being committed
    assert answer.body["text"] == "done: hello"
    history = server.get("/sessions/left/messages").body
    check_history(history)
    assert [message["content"][0]["text"] for message in history][-1] == "done: hello"


def test_a_client_that_leaves_a_plain_call_finds_its_answer_later(server: Server) -> None:
    with closing(server.connect()) as connection:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/sessions/gone/messages", json.dumps({"text": "slow gone"}), headers)
        server.program.wait_for("begun slow gone")
    server.program.wait_for("ended slow gone")
    while len(kept := server.get("/sessions/gone/messages").body) < 2:
        pass  # the answer is being committed
    assert kept[1]["content"][0]["text"] == "done: slow gone"


# --------------------------------------------------------------------------------------------------- how it is stopped


@pytest.mark.parametrize("name", SERVERS)
def test_sigterm_in_the_middle_of_turns_answers_what_is_in_flight_and_loses_nothing(tmp_path: Path, name: str) -> None:
    database = tmp_path / "a.db"
    with serving(name, database) as server, ThreadPoolExecutor() as pool:
        assert server.say("quick", "hello").status == 200
        slow = pool.submit(server.say, "slow", "slow one")
        endless = pool.submit(server.say, "endless", "endless one")
        stream = pool.submit(server.post, "/sessions/streamed/stream", {"text": "endless two"})
        begun = {server.program.wait_for("begun (.* .*)")[1] for _ in range(3)}
        assert begun == {"slow one", "endless one", "endless two"}
        server.program.signal(signal.SIGTERM)
        assert slow.result() == Answer(200, {"text": "done: slow one", "stop_reason": "end_turn"})
        assert endless.result().status == 503
        assert endless.result().retry_after is not None
        assert stream.result().status == 0  # its status had gone out; that it is not whole can be seen
        server.program.wait_for("drained .* ok=True")
        assert server.say("quick", "too late").status == 0
        assert server.program.exit_code() == STOPPED[name]
    quick, slow_one, *endless_ones = histories(database, "quick", "slow", "endless", "streamed")
    assert (quick, slow_one) == (["hello", "done: hello"], ["slow one", "done: slow one"])
    for said, history in zip(("endless one", "endless two"), endless_ones, strict=True):
        assert history[:1] == [said]
        # A server that lets its clients go before the runtime ends leaves what was said of the answer.
        assert history[1:] in ([], [f"done: {said}\n{STOPPED_TEXT}"])


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("uvicorn-asyncio", signal.SIGTERM),
        ("hypercorn-trio", signal.SIGTERM),
        ("uvicorn-asyncio", signal.SIGKILL),
    ],
)
def test_every_acknowledged_turn_of_the_example_survives_a_stop_and_a_kill_under_load(
    tmp_path: Path, name: str, number: signal.Signals
) -> None:
    database = tmp_path / "sessions.db"
    clients, enough, stopping = 4, 5, Lock()
    with serving(name, database, app="examples.service_fastapi:app") as server, ThreadPoolExecutor(clients) as pool:
        acknowledged: list[list[str]] = [[] for _ in range(clients)]

        def talk(client: int) -> None:
            while (answer := server.say(f"s{client}", f"My lucky number is {len(acknowledged[client])}.")).status:
                if answer.status == 200:
                    acknowledged[client].append(answer.body["text"])
                    if len(acknowledged[client]) == enough and number is signal.SIGKILL:
                        server.program.kill()
                    elif len(acknowledged[client]) == enough and stopping.acquire(blocking=False):
                        # Once: a second signal may find Hypercorn's handler holding a lock that it takes again.
                        server.program.signal(number)

        list(pool.map(talk, range(clients)))
        assert server.program.exit_code() == (STOPPED[name] if number is signal.SIGTERM else -number)
        assert any("drained" in line for line in server.program.output) == (number is signal.SIGTERM)
    for told, history in zip(acknowledged, histories(database, *(f"s{n}" for n in range(clients))), strict=True):
        assert told
        assert history[1 : 2 * len(told) : 2] == told
        assert len(history) - 2 * len(told) in {0, 1, 2}  # at most the turn whose answer nobody heard


def test_uvicorn_ends_at_once_when_ctrl_c_follows_sigterm_and_what_was_acknowledged_is_there(tmp_path: Path) -> None:
    """Uvicorn's rule: SIGTERM may come any number of times, SIGINT after it forces the exit."""
    database = tmp_path / "a.db"
    with serving("uvicorn-asyncio", database) as server, ThreadPoolExecutor() as pool:
        assert server.say("s", "hello").status == 200
        endless = pool.submit(server.say, "s", "endless one")
        server.program.wait_for("begun endless one")
        server.program.signal(signal.SIGTERM)
        server.program.wait_for("Waiting for connections to close")
        server.program.signal(signal.SIGINT)
        assert server.program.exit_code() == -signal.SIGTERM
        assert endless.result().status == 0
        assert not any("drained" in line for line in server.program.output)
    assert histories(database, "s") == [["hello", "done: hello", "endless one"]]


@pytest.mark.parametrize("name", ["uvicorn-asyncio", "hypercorn-trio"])
def test_a_server_whose_actors_are_lost_ends_instead_of_answering_without_them(tmp_path: Path, name: str) -> None:
    database = tmp_path / "a.db"
    with serving(name, database) as server:
        assert server.say("s", "hello").status == 200
        server.post("/lose")
        assert server.program.exit_code() == LOST[name]
        # A worker of Hypercorn's leaves SIGTERM its default effect, so nothing drains; there is nothing left to drain.
        assert any("drained" in line for line in server.program.output) == (name != "hypercorn-trio")
        assert server.get("/healthz").status == 0
    assert histories(database, "s") == [["hello", "done: hello"]]
