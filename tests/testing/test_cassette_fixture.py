"""The fixture `cassette` in suites of users: a file for each test, under each of pytest's plugins for event loops."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio.from_thread
import pytest

from tests.backends.models.cassette_adapters import ADAPTERS, NOWHERE
from tests.backends.models.wire_server import WireServer, wire_server
from tests.source_tree import ROOT

pytestmark = pytest.mark.real_time
ANTHROPIC = ADAPTERS[0]
CONFTEST = 'pytest_plugins = ["repertory.testing.pytest_cassette"]\n'
ASK = """
import pytest
from contextlib import aclosing
from repertory import AnthropicModel

async def ask(prompt):
    model = AnthropicModel()
    try:
        async with aclosing(model.stream([{"role": "user", "content": [{"text": prompt}]}])) as events:
            deltas = [event["contentBlockDelta"]["delta"] async for event in events if "contentBlockDelta" in event]
    finally:
        await model.aclose()
    return "".join(delta["text"] for delta in deltas)
"""
BARE = """
import os
import pytest
import httpx

async def ask(prompt):
    message = {"role": "user", "content": [{"type": "text", "text": prompt}]}
    async with httpx.AsyncClient() as client:
        answer = await client.post(os.environ["ANTHROPIC_BASE_URL"], json={"messages": [message]})
    return answer.json()["content"][0]["text"]
"""
"""The same without a model, which takes a second to load."""
SUITES = {
    "anyio": """
@pytest.mark.anyio
async def test_greets(cassette):
    assert await ask("Hi") == "Hello"

class TestMore:
    @pytest.mark.anyio
    @pytest.mark.parametrize("name", ["Jane Doe", "John"])
    async def test_greets(self, cassette, name):
        assert await ask(name) == "Hello"
""",
    "asyncio": """
@pytest.mark.asyncio
async def test_greets(cassette):
    assert await ask("Hi") == "Hello"
""",
    "trio": """
@getattr(pytest.mark, "trio")
async def test_greets(cassette):
    assert await ask("Hi") == "Hello"
""",
    "none": """
import anyio

def test_greets(cassette):
    assert anyio.run(ask, "Hi") == "Hello"
""",
}
PLUGINS = {"anyio": ["anyio"], "asyncio": ["pytest_asyncio.plugin"], "trio": ["pytest_trio.plugin"], "none": []}


class Suite:
    """A suite of a user in a folder of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        self._plugins: Sequence[str] = ()
        self.cassettes = folder / "tests" / "cassettes" / "test_shop"

    def write(self, text: str, conftest: str = "", *, ask: str = BARE, plugins: Sequence[str] = ()) -> None:
        """Replace the tests. `plugins`: those that they need."""
        self._plugins = plugins
        (self._folder / "tests").mkdir(exist_ok=True)
        (self._folder / "pytest.ini").write_text("[pytest]\n")
        (self._folder / "tests" / "conftest.py").write_text(CONFTEST + conftest)
        (self._folder / "tests" / "test_shop.py").write_text(ask + text)

    def run(self, *options: str, record: str | None = None, key: bool = False) -> str:
        """What pytest prints. `record` is the environment's variable; `key`: the network and a key are there."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC", "PYTEST"))}
        environment = inherited | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        environment |= {"ANTHROPIC_BASE_URL": self._url if key else NOWHERE}
        environment |= {"ANTHROPIC_API_KEY": "sesame-of-the-suite"} if key else {}
        environment |= {"REPERTORY_RECORD_CASSETTES": record} if record else {}
        plugins = [part for plugin in self._plugins for part in ("-p", plugin)]
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *plugins, *options]
        done = subprocess.run(
            command, cwd=self._folder, env=environment, capture_output=True, text=True, check=False, timeout=50
        )
        return done.stdout + done.stderr

    def files(self) -> list[str]:
        """The names of the files that were recorded."""
        return sorted(path.name for path in self.cassettes.rglob("*") if path.is_file())


@contextmanager
def serving() -> Iterator[WireServer]:
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(wire_server(ANTHROPIC.says_hello)) as server,
    ):
        yield server


@pytest.fixture
def server() -> Iterator[WireServer]:
    with serving() as running:
        yield running


@pytest.fixture
def suite(tmp_path: Path, server: WireServer) -> Suite:
    return Suite(tmp_path, server.url)


def outcomes(printed: str) -> dict[str, int]:
    """How many tests ended how."""
    last = next((line for line in reversed(printed.splitlines()) if line.startswith("===")), "")
    return {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|errors?|skipped)", last)}


@pytest.mark.parametrize("plugin", SUITES)
def test_tests_are_recorded_once_and_replayed_without_network_and_key(
    suite: Suite, server: WireServer, plugin: str
) -> None:
    suite.write(SUITES[plugin], ask=ASK, plugins=PLUGINS[plugin])
    count = 6 if plugin == "anyio" else 1  # of three tests, on two loops
    printed = suite.run("--record-cassettes=missing", key=True)
    assert outcomes(printed) == {"passed": count}, printed
    assert len(server.requests) == (3 if plugin == "anyio" else 1)  # the second loop replays what the first recorded
    names = ["test_greets.json"]
    if plugin == "anyio":
        names = ["TestMore.test_greets[Jane_Doe]-f0d6f3ab.json", "TestMore.test_greets[John].json", *names]
    assert [re.sub(r"-[0-9a-f]{8}", "-f0d6f3ab", name) for name in suite.files()] == names
    assert "sesame" not in "".join(path.read_text() for path in suite.cassettes.iterdir())
    printed = suite.run()
    assert outcomes(printed) == {"passed": count}, printed


def test_a_test_without_a_recording_fails_with_the_command_to_type(suite: Suite, server: WireServer) -> None:
    suite.write(SUITES["none"])
    printed = suite.run(key=True)
    assert outcomes(printed) == {"error": 1}
    assert "pytest 'tests/test_shop.py::test_greets' --record-cassettes=missing" in printed
    assert not server.requests
    command = ("tests/test_shop.py::test_greets", "--record-cassettes=missing")
    assert outcomes(suite.run(*command, key=True)) == {"passed": 1}


def test_all_records_anew_and_the_variable_does_so_too(suite: Suite, server: WireServer) -> None:
    suite.write(SUITES["none"])
    assert outcomes(suite.run("--record-cassettes=all", key=True)) == {"passed": 1}
    assert outcomes(suite.run(record="all", key=True)) == {"passed": 1}
    assert len(server.requests) == 2
    assert "one of none, missing, all" in suite.run(record="yes", key=True)


def test_a_test_that_fails_leaves_no_file_and_a_recorded_one_as_it_was(suite: Suite) -> None:
    suite.write(SUITES["none"].replace('== "Hello"', '== "Bye"'))
    assert outcomes(suite.run("--record-cassettes=all", key=True)) == {"failed": 1}
    assert suite.files() == []
    suite.write(SUITES["none"])
    suite.run("--record-cassettes=all", key=True)
    [file] = suite.cassettes.iterdir()
    before = file.read_bytes()
    suite.write(SUITES["none"].replace('"Hi"', '"Ho"').replace('== "Hello"', '== "Bye"'))
    assert outcomes(suite.run("--record-cassettes=all", key=True)) == {"failed": 1}
    assert file.read_bytes() == before


def test_a_changed_prompt_fails_the_test_with_the_difference(suite: Suite, server: WireServer) -> None:
    suite.write(SUITES["none"])
    suite.run("--record-cassettes=missing", key=True)
    suite.write(SUITES["none"].replace('"Hi"', '"Ho"'))
    printed = suite.run(key=True)
    assert outcomes(printed) == {"failed": 1}, printed
    assert re.search(r"- +\"text\": \"Hi\"", printed)
    assert re.search(r"\+ +\"text\": \"Ho\"", printed)
    assert len(server.requests) == 1


def test_a_mismatch_that_the_test_swallowed_is_shown_whether_it_failed_or_not(suite: Suite) -> None:
    suite.write(SUITES["none"])
    suite.run("--record-cassettes=missing", key=True)
    swallowing = """
import anyio

def test_greets(cassette):
    try:
        anyio.run(ask, "Ho")
    except Exception:
        pass
"""
    suite.write(swallowing)
    printed = suite.run()
    assert outcomes(printed) == {"passed": 1, "error": 1}, printed
    assert "not on the cassette" in printed
    suite.write(swallowing + "    assert False, 'something else'\n")
    printed = suite.run()
    assert outcomes(printed) == {"failed": 1}, printed
    assert "not on the cassette" in printed


def test_the_settings_of_a_folder_are_those_of_its_cassettes(suite: Suite) -> None:
    settings = """
import pytest

@pytest.fixture
def cassette_settings():
    return {"redact": ["Jane Doe"]}
"""
    suite.write(SUITES["none"].replace('"Hi"', '"I am Jane Doe"'), settings)
    suite.run("--record-cassettes=missing", key=True)
    [file] = suite.cassettes.iterdir()
    recorded: Any = json.loads(file.read_text())["interactions"][0]["request"]["json"]
    assert recorded["messages"][0]["content"][0]["text"] == "I am REDACTED"
    assert outcomes(suite.run()) == {"passed": 1}


def test_another_try_of_a_test_that_failed_records_it(suite: Suite) -> None:
    twice = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    for _ in range(2):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    return True
"""
    flaky = SUITES["none"] + "    tries.append(1)\n    assert len(tries) == 2\n\ntries = []\n"
    suite.write(flaky, twice)
    assert outcomes(suite.run("--record-cassettes=missing", key=True)) == {"passed": 1}
    assert suite.files() == ["test_greets.json"]


def test_only_the_loop_is_left_out_of_the_name_of_a_file(suite: Suite, server: WireServer) -> None:
    text = """
@pytest.mark.anyio
@pytest.mark.parametrize(("runner", "number"), [("asyncio", 1), ("trio", 2)])
@pytest.mark.parametrize("word", ["a-trio"])
async def test_greets(cassette, runner, number, word):
    assert await ask(runner) == "Hello"
"""
    suite.write(text, plugins=["anyio"])
    printed = suite.run("--record-cassettes=missing", key=True)
    assert outcomes(printed) == {"passed": 4}, printed
    assert suite.files() == ["test_greets[a-trio-asyncio-1].json", "test_greets[a-trio-trio-2].json"]
    assert len(server.requests) == 2
    assert outcomes(suite.run()) == {"passed": 4}
