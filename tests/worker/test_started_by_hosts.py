"""Hosts that call back when they start and when they stop: arq, Celery and Django run a runtime between the two."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from repertory import SQLiteQueue, TurnJob
from tests.service.embedding_process import Server, started
from tests.service.histories import read_histories
from tests.worker.redis_server import redis_server

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(120)]

ARQ = ("-m", "arq", "tests.worker.arq_host.WorkerSettings")
CELERY = ("-m", "celery", "-A", "tests.worker.celery_host", "worker", "-P", "prefork", "-c", "2", "-l", "warning")


@pytest.mark.parametrize(("host", "command"), [("arq_host", ARQ), ("celery_host", CELERY)], ids=["arq", "celery"])
def test_a_host_of_jobs_answers_and_sigterm_finishes_the_job_in_hand_and_stores_it(
    host: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    environment = {"DATABASE": str(tmp_path / "a.db"), "BROKER": str(tmp_path), "PYTHONWARNINGS": "ignore"}

    def asked(session: str, text: str) -> str:
        with started("-m", f"tests.worker.{host}", session, text, folder=tmp_path, **environment) as client:
            assert client.exit_code() == 0, client.output
            return client.output[-1]

    with ExitStack() as stack:
        if host == "arq_host":
            environment["PORT"] = str(stack.enter_context(redis_server(tmp_path)))
        worker = stack.enter_context(started(*command, folder=tmp_path, **environment))
        pool = stack.enter_context(ThreadPoolExecutor())
        worker.wait_for("started")
        assert asked("quick", "hello") == "done: hello"
        slow = pool.submit(asked, "slow", "slow one")
        worker.wait_for("begun slow one")
        worker.signal(signal.SIGTERM)
        assert slow.result() == "done: slow one"
        worker.wait_for("stopped ok=True")
        worker.exit_code()
    histories = anyio.run(read_histories, tmp_path / "a.db", "helper", ["quick", "slow"])
    assert histories == [["hello", "done: hello"], ["slow one", "done: slow one"]]


@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_django_serves_under_an_asgi_server_that_starts_and_stops_the_runtime(server: str, tmp_path: Path) -> None:
    app = "tests.worker.django_host:app"
    command = {
        "uvicorn": ("-m", "uvicorn", app, "--port", "0", "--lifespan", "on"),
        "hypercorn": ("-m", "hypercorn", app, "--bind", "127.0.0.1:0"),
    }[server]
    with (
        started(*command, folder=tmp_path, DATABASE=str(tmp_path / "a.db")) as program,
        ThreadPoolExecutor() as pool,
    ):
        served = Server(program)
        assert served.get("/healthz").body == {"healthy": True}
        assert served.say("quick", "hello").body == {"text": "done: hello"}
        slow = pool.submit(served.say, "slow", "slow one")
        program.wait_for("begun slow one")
        program.signal(signal.SIGTERM)
        assert slow.result().body == {"text": "done: slow one"}
        program.wait_for("stopped ok=True")
        assert program.exit_code() in {0, -signal.SIGTERM}
    histories = anyio.run(read_histories, tmp_path / "a.db", "helper", ["quick", "slow"])
    assert histories == [["hello", "done: hello"], ["slow one", "done: slow one"]]


def test_a_management_command_of_django_does_jobs(tmp_path: Path) -> None:
    async def send() -> None:
        async with SQLiteQueue(tmp_path / "jobs.db") as queue:
            for number in range(3):
                await queue.send(TurnJob("helper", f"s{number}", "hello", token=f"t{number}"))

    anyio.run(send)
    command = ("-m", "tests.worker.django_host", str(tmp_path / "jobs.db"))
    with started(*command, folder=tmp_path, DATABASE=str(tmp_path / "a.db")) as program:
        assert program.exit_code() == 0
        assert program.output[-1] == "finished 3"
