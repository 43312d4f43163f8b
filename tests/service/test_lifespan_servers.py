"""`FastAPI(lifespan=runtime.lifespan)` and Starlette's, under real servers."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest

from tests.service.embedding_process import Answer, serving
from tests.service.histories import read_histories

pytestmark = pytest.mark.real_time

APP = "tests.console.lifespan_service:app"


@pytest.mark.parametrize("framework", ["starlette", "fastapi"])
@pytest.mark.parametrize("name", ["uvicorn-asyncio", "hypercorn-trio"])
def test_requests_find_the_runtime_and_sigterm_answers_those_in_flight_before_it_drains(
    tmp_path: Path, name: str, framework: str
) -> None:
    database = tmp_path / "a.db"
    with serving(name, database, APP, FRAMEWORK=framework) as server, ThreadPoolExecutor() as pool:
        assert server.get("/healthz") == Answer(200, {"same": True, "healthy": True})
        assert server.say("quick", "hello").body["text"] == "done: hello"
        slow = pool.submit(server.say, "slow", "slow one")
        server.program.wait_for("begun slow one")
        server.program.signal(signal.SIGTERM)
        assert slow.result().body["text"] == "done: slow one"
        server.program.wait_for("closed")
        assert server.program.exit_code() in {0, -signal.SIGTERM}
        assert server.say("quick", "too late").status == 0
    histories = anyio.run(read_histories, database, "helper", ["quick", "slow"])
    assert histories == [["hello", "done: hello"], ["slow one", "done: slow one"]]
