"""`repertory serve` with real processes: it begins, answers, goes on after a restart, and ends as it was told."""

from __future__ import annotations

import random
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import anyio
import pytest

from repertory.errors import Unavailable
from repertory.service.process.listening import listen_at_path
from tests.service.embedding_process import started
from tests.service.histories import read_histories
from tests.service.serving_process import COMMAND, CONFIGURATION, Load, Served, is_alive, serving, wait_until_gone

pytestmark = pytest.mark.real_time
LOOPS = [(), ("--trio",)]
TOKEN = "a-secret-of-acme-0123456789"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a configuration."""
    (tmp_path / "repertory.toml").write_text(CONFIGURATION)
    return tmp_path


def histories(folder: Path, sessions: list[str], database: str = "agents.db") -> list[list[str]]:
    return anyio.run(read_histories, folder / database, "clerk", sessions)


def check_load(folder: Path, load: Load) -> None:
    """Nothing that was answered is lost, and nothing was said twice."""
    for session, prompts in load.answered.items():
        wanted = [text for prompt in prompts for text in (prompt, f"done: {prompt}")]
        (found,) = histories(folder, [session])
        assert found[: len(wanted)] == wanted
        assert len(found) - len(wanted) in (0, 2)  # the last one may have had its answer when its client had left


@pytest.mark.parametrize("options", LOOPS, ids=["asyncio", "trio"])
def test_a_configuration_is_served_and_its_conversations_go_on_after_a_restart(
    folder: Path, options: tuple[str, ...]
) -> None:
    for number in range(2):
        with serving(folder, *options) as served:
            assert served.ask("GET", "/readyz").status == 200
            assert served.say("ada", f"hello {number}").body["text"] == f"done: hello {number}"
            served.program.signal(signal.SIGTERM)
            assert served.program.exit_code() == 0
            assert served.say("ada", "too late").status == -1
    assert histories(folder, ["ada"]) == [["hello 0", "done: hello 0", "hello 1", "done: hello 1"]]
    assert "agents.db" in served.line.string
    assert "clerk" in served.line.string


@pytest.mark.parametrize("options", LOOPS, ids=["asyncio", "trio"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_lets_turns_in_flight_be_answered(
    folder: Path, options: tuple[str, ...], number: signal.Signals
) -> None:
    with serving(folder, *options, DELAY_S="0.5") as served, ThreadPoolExecutor() as pool:
        warm = served.say("s0", "warm")
        calls = [pool.submit(served.say, f"s{n}", f"slow {n}") for n in range(5)]
        for _ in calls:
            served.program.wait_for("begun slow")
        served.program.signal(number)
        assert [call.result().status for call in calls] == [200] * 5
        assert served.program.exit_code() == 0
    assert warm.status == 200
    assert histories(folder, ["s1", "s4"]) == [["slow 1", "done: slow 1"], ["slow 4", "done: slow 4"]]


def test_a_target_is_served(folder: Path) -> None:
    for target in ("tests.service.served_shop:runtime", "tests.service.served_shop:made"):
        with serving(folder, target, "--port", "0") as served:
            assert served.say("ada", "hello").body["text"] == "done: hello"
            served.program.signal(signal.SIGTERM)
            assert served.program.exit_code() == 0
    assert len(histories(folder, ["ada"], "target.db")[0]) == 4


def test_a_unix_socket_is_served_and_what_a_killed_process_left_is_replaced(folder: Path) -> None:
    for _ in range(2):
        with started(*COMMAND, "--uds", "s.sock", folder=folder) as program:
            program.wait_for(r"repertory serves clerk at unix:s.sock")
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(folder / "s.sock"))
                client.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert client.recv(100).startswith(b"HTTP/1.1 200")
            assert (folder / "s.sock").stat().st_mode & 0o777 == 0o600
            with started(*COMMAND, "--uds", "s.sock", folder=folder) as second:
                assert second.exit_code() == 1
                assert "cannot listen there" in second.output[-1]
            program.kill()


def test_the_socket_of_the_next_process_stays_when_this_one_ends(folder: Path) -> None:
    path = folder / "s.sock"
    with started(*COMMAND, "--uds", "s.sock", folder=folder) as program, socket.socket(socket.AF_UNIX) as following:
        program.wait_for(r"repertory serves clerk at unix:s.sock")
        path.unlink()
        following.bind(str(path))
        program.signal(signal.SIGTERM)
        assert program.exit_code() == 0
        assert path.exists()


def test_a_socket_that_is_too_busy_to_answer_is_not_waited_for(tmp_path: Path) -> None:
    with ExitStack() as stack:
        busy = stack.enter_context(socket.socket(socket.AF_UNIX))
        busy.bind(str(tmp_path / "s"))
        busy.listen(0)
        with suppress(BlockingIOError):
            while True:
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(str(tmp_path / "s"))
        with pytest.raises(Unavailable):
            listen_at_path(tmp_path / "s")
        assert (tmp_path / "s").exists()


WRONG = {
    "no file": ((), None, 2, r"name a runtime, as in `repertory serve shop:runtime`, or write repertory.toml"),
    "a file that is missing": (("--config", "no.toml"), None, 2, "write it, or name another path='no.toml'"),
    "faults": (
        (),
        '[agents.a]\nmodel = "offline"\nbusi = 1\n[service]\nport = -1\n',
        2,
        r"repertory.toml: agents.a.busi: there is no such key; did you mean `busy`\?",
    ),
    "a secret that is not set": (
        (),
        '[agents.a]\nmodel = "offline"\n[service.tokens]\nacme = { env = "NOBODY" }\n',
        2,
        "repertory.toml: service.tokens.acme: the variable NOBODY",
    ),
    "no such module": (("no_such_shop:runtime",), None, 2, "there is no module `no_such_shop` in"),
    "no such name": (("tests.service.served_shop:runtme",), None, 2, "did you mean `runtime`"),
    "no name": (("shop",), None, 2, "named module:name"),
    "no runtime": (
        ("tests.service.served_shop:no_runtime",),
        None,
        2,
        "is no Runtime, and no function that returns one",
    ),
    "both": (("shop:runtime", "--config", "x.toml"), None, 2, "not both"),
    "workers without peers": (("tests.service.served_shop:runtime", "--workers", "2"), None, 2, "peers=Peers\\(\\)"),
    "no number": (("--workers", "0"), CONFIGURATION, 2, "workers is a number of processes from 1 to 256"),
    "no port": (("--port", "70000"), CONFIGURATION, 2, "a port is a number from 0 to 65535"),
    "no address of this machine": (("--host", "192.0.2.1"), CONFIGURATION, 1, "the server cannot listen there"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_served_is_told_and_ends_with_its_code(tmp_path: Path, name: str) -> None:
    options, text, code, says = WRONG[name]
    if text is not None:
        (tmp_path / "repertory.toml").write_text(text)
    port = () if "--port" in options else ("--port", "0")
    with started(*COMMAND, *options, *port, folder=tmp_path) as program:
        assert program.exit_code() == code
    output = "\n".join(program.output)
    assert re.search(says, output), output
    assert "Traceback" not in output


@pytest.mark.parametrize("workers", [1, 2])
def test_a_port_that_is_taken_is_told(folder: Path, workers: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with started(*COMMAND, "--port", port, "--workers", str(workers), folder=folder) as program:
            assert program.exit_code() == 1
    (line,) = program.output
    assert re.search(rf"the server cannot listen there address='127.0.0.1:{port}' cause='.*in use", line)


def test_an_address_of_other_machines_gets_a_token_that_is_printed_once(folder: Path) -> None:
    with serving(folder, "--host", "0.0.0.0") as served:
        token = served.program.wait_for(r"^The token: (\S+)$")[1]
        assert served.say("ada", "hello").status == 401
        assert served.say("ada", "hello", bearer=token).status == 200
        served.program.signal(signal.SIGTERM)
        assert served.program.exit_code() == 0
        assert sum(token in line for line in served.program.output) == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_tenants_come_from_the_environment_and_no_output_shows_their_tokens(folder: Path, workers: int) -> None:
    tokens = '[service.tokens]\nacme = { env = "ACME" }\nbees = { file = "bees" }\n[logs]\nlevel = "debug"\n'
    (folder / "repertory.toml").write_text(CONFIGURATION + tokens)
    (folder / "bees").write_text("another-secret-of-bees\n")
    with serving(folder, "--host", "0.0.0.0", workers=workers, ACME=TOKEN) as served:
        assert served.say("ada", "hello").status == 401
        assert served.say("ada", "hello", bearer="wrong-secret-0123456789").status == 401
        assert served.say("ada", "hello", bearer=TOKEN).status == 200
        messages = "/v1/agents/clerk/sessions/ada/messages"
        assert served.ask("GET", messages, bearer="another-secret-of-bees").status == 404
        served.program.signal(signal.SIGTERM)
        assert served.program.exit_code() == 0
    output = "\n".join(served.program.output)
    assert TOKEN not in output
    assert "another-secret" not in output
    assert "The token" not in output


def test_a_second_signal_cuts_turns_short_and_the_next_start_goes_on_with_them(folder: Path) -> None:
    with serving(folder) as served, ThreadPoolExecutor() as pool:
        call = pool.submit(served.say, "s0", "wait 9", "t1")
        served.program.wait_for("begun wait 9")
        served.program.signal(signal.SIGTERM)
        served.program.wait_for("no more requests are taken")
        served.program.signal(signal.SIGTERM)
        assert served.program.exit_code() == 0
        assert call.result().status in (0, 503)
    with serving(folder) as served:
        assert served.ask("GET", "/v1/agents/clerk/sessions/s0/pending").body["why"] == "cut short"


@pytest.mark.parametrize("options", LOOPS, ids=["asyncio", "trio"])
def test_workers_share_sessions_and_all_drain_at_one_signal(folder: Path, options: tuple[str, ...]) -> None:
    with serving(folder, *options, workers=2) as served:
        with Load(served, 4) as load:
            load.until(40)
        assert "2 workers" in served.line.string
        served.program.signal(signal.SIGTERM)
        assert served.program.exit_code() == 0
        assert not any(map(is_alive, served.pids))
    assert set(load.statuses) == {200}
    check_load(folder, load)


def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost_or_said_twice(
    folder: Path, rng: random.Random
) -> None:
    with serving(folder, workers=2, DELAY_S="0.02") as served:
        with Load(served, 6) as load:
            for _ in range(3):
                load.until(rng.randrange(10, 50))
                Served.kill_worker(served.pids.pop(rng.randrange(2)))
                served.new_worker()
            load.until(30)
        served.program.signal(signal.SIGTERM)
        assert served.program.exit_code() == 0
    check_load(folder, load)


def test_sighup_replaces_every_worker_and_no_connection_is_refused(folder: Path) -> None:
    with serving(folder, workers=2, DELAY_S="0.02") as served:
        first = list(served.pids)
        with Load(served, 6) as load:
            load.until(30)
            served.program.signal(signal.SIGHUP)
            second = [served.new_worker(), served.new_worker()]
            for pid in first:
                wait_until_gone(pid)
            load.until(30)
        assert not set(first) & set(second)
        assert all(map(is_alive, second))
        served.program.signal(signal.SIGTERM)
        assert served.program.exit_code() == 0
    assert -1 not in load.statuses
    check_load(folder, load)


def test_a_configuration_that_became_wrong_leaves_the_old_workers_alone(folder: Path) -> None:
    with serving(folder, workers=2) as served:
        (folder / "repertory.toml").write_text(CONFIGURATION + "[nonsense]\n")
        served.program.signal(signal.SIGHUP)
        served.program.wait_for(r"repertory.toml: nonsense: there is no such key")
        served.program.wait_for("a new worker has failed: the old ones stay")
        assert all(map(is_alive, served.pids))
        assert served.say("ada", "hello").status == 200


def test_workers_end_when_their_parent_is_killed_and_answer_what_they_have(folder: Path) -> None:
    with serving(folder, workers=2, DELAY_S="0.5") as served, ThreadPoolExecutor() as pool:
        calls = [pool.submit(served.say, f"s{n}", f"slow {n}") for n in range(4)]
        for _ in calls:
            served.program.wait_for("begun slow")
        served.program.signal(signal.SIGKILL)
        assert served.program.process.wait() == -signal.SIGKILL
        assert [call.result().status for call in calls] == [200] * 4
        for pid in served.pids:
            wait_until_gone(pid)
    with serving(folder, "--port", str(served.port), workers=2) as again:
        assert again.say("s0", "hello").body["text"] == "done: hello"


def test_workers_that_end_again_and_again_end_the_service(folder: Path) -> None:
    with serving(folder, workers=2) as served:
        while True:
            Served.kill_worker(served.pids.pop(0))
            if served.program.wait_for(r"a worker answers worker=(\d+)|workers end again and again")[1] is None:
                break
            served.pids.append(int(served.program.output[-1].partition("worker=")[2]))
        assert served.program.exit_code() == 1


def test_check_says_what_would_be_served_or_all_that_is_wrong(folder: Path) -> None:
    with started("-m", "repertory.console.main", "check", folder=folder) as program:
        assert program.exit_code() == 0
    assert program.output[0] == "repertory.toml is right."
    assert "agent clerk: Echo" in program.output
    (folder / "repertory.toml").write_text("[agents.a]\nmodel = 3\n[servise]\n")
    with started("-m", "repertory.console.main", "check", folder=folder) as program:
        assert program.exit_code() == 2
    assert [line.split(": ")[1] for line in program.output[:2]] == ["agents.a.model", "servise"]
    assert program.output[-1] == "repertory: 2 faults in the configuration"
