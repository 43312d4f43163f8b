"""Owners on one machine that share sessions: an idle one gives them up when another asks, and nothing said is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from msgspec.structs import replace

from repertory import Agent, AgentSpec, Runtime, ScriptedModel
from repertory.app.sessions.sessions import PlacedSession
from repertory.backends.ports import SessionStore, StoreCapabilities
from repertory.core.messages import text_of
from tests.app.embedding.sharing_process import place
from tests.backends.objects.moto_s3 import moto_s3

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parents[3]
IN_FOLDERS = ["sqlite", "journals", "documents"]
IN_BUCKETS = {"journals in a bucket": 5, "documents in a bucket": 7}
"""With a turn that is longer than anybody waits, in seconds."""


class Sharer:
    """One process that takes part."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, line: str) -> str:
        """What it answers."""
        self.tell(line)
        return self.hear()

    def ask_until_free(self, line: str) -> str:
        """The same. On a machine that has no time, the other process may be slow to give the session up."""
        answer = "SessionBusy"
        for _ in range(20):
            if answer != "SessionBusy":
                break
            answer = self.ask(line)
        return answer

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def kill(self, after_s: float = 0.0) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(after_s)
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)


@contextmanager
def sharer(name: str, kind: str, where: str, loop: str, *, bare: bool = False) -> Iterator[Sharer]:
    program = [
        sys.executable,
        "-m",
        "tests.app.embedding.sharing_process",
        name,
        kind,
        where,
        loop,
        *(["bare"] if bare else []),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as process:
        try:
            yield Sharer(process)
        finally:
            process.kill()


@contextmanager
def two(kind: str, where: str, *, bare: bool = False) -> Iterator[tuple[Sharer, Sharer]]:
    """One on asyncio and one on trio."""
    with (
        sharer("one", kind, where, "asyncio", bare=bare) as one,
        sharer("two", kind, where, "trio", bare=bare) as other,
    ):
        assert (one.hear(), other.hear()) == ("ready", "ready")
        yield one, other


def history(kind: str, where: str, session_id: str) -> list[str]:
    async def read() -> list[str]:
        async with Runtime(sessions=place(kind, where)) as runtime:
            session = runtime.agent(AgentSpec(model=ScriptedModel(["x"]))).session(session_id)
            return [text_of(message) for message in await session.history()]

    return anyio.run(read)


def check_sharing(kind: str, where: str, long_s: int) -> None:
    """`long_s`: how long a turn is that is longer than anybody waits."""
    with two(kind, where) as (one, other):
        assert one.ask("say s a") == "one: a"
        assert other.ask_until_free("say s b") == "two: b"
        assert one.ask("say other mine") == "one: mine"
        # A turn that runs is not disturbed; with its end the session is free.
        assert one.ask_until_free(f"slow s {long_s}") == "begun"
        assert other.ask("say s too-early") == "SessionBusy"
        assert one.hear() == f"one: {long_s}"
        assert other.ask_until_free("say s c") == "two: c"
        assert (one.ask("drain"), other.ask("drain")) == ("drained", "drained")
    said = [("a", "one"), ("b", "two"), (str(long_s), "one"), ("c", "two")]
    assert history(kind, where, "s") == [text for words, who in said for text in (words, f"{who}: {words}")]


@pytest.mark.parametrize("kind", IN_FOLDERS)
def test_two_processes_share_a_session_in_a_folder(kind: str, tmp_path: Path) -> None:
    check_sharing(kind, str(tmp_path), 2)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with moto_s3(tmp_path_factory.mktemp("moto") / "log") as url:
        yield url


@pytest.fixture
def aws_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("aws_keys")
@pytest.mark.parametrize("kind", IN_BUCKETS)
def test_two_processes_share_a_session_in_a_bucket(kind: str, bucket: str) -> None:
    check_sharing(kind, f"{bucket}#{kind.replace(' ', '-')}", IN_BUCKETS[kind])


def check_calls(kind: str, where: str) -> None:
    """Between two calls outside any block nobody owns the session, also if the process is killed then."""
    said: list[str] = []
    with two(kind, where, bare=True) as (one, other):
        for number in range(6):
            for name, process in (("one", one), ("one", one), ("two", other)):
                words = f"{number}-{len(said)}"
                assert process.ask(f"say s {words}") == f"{name}: {words}"
                said += [words, f"{name}: {words}"]
        assert one.ask("say s last") == "one: last"
        one.kill()
        assert other.ask("say s behind") == "two: behind"
        assert other.ask("drain") == "drained"
    assert history(kind, where, "s") == [*said, "last", "one: last", "behind", "two: behind"]


@pytest.mark.parametrize("kind", IN_FOLDERS)
def test_two_processes_call_a_session_in_a_folder_in_turn_and_one_is_killed_between_calls(
    kind: str, tmp_path: Path
) -> None:
    check_calls(kind, str(tmp_path))


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("aws_keys")
@pytest.mark.parametrize("kind", IN_BUCKETS)
def test_two_processes_call_a_session_in_a_bucket_in_turn_and_one_is_killed_between_calls(
    kind: str, bucket: str
) -> None:
    check_calls(kind, f"{bucket}#calls-{kind.replace(' ', '-')}")


def test_an_owner_that_is_killed_while_it_is_asked_leaves_the_session_free(tmp_path: Path) -> None:
    with two("sqlite", str(tmp_path)) as (one, other):
        assert one.ask("say s first") == "one: first"
        assert one.ask("slow s 600") == "begun"
        other.tell("say s second")
        one.kill()
        assert other.hear() == "two: second"
        assert other.ask("drain") == "drained"


@pytest.mark.parametrize("kind", IN_FOLDERS)
def test_a_session_goes_back_and_forth_and_no_turn_is_lost_or_doubled(kind: str, tmp_path: Path) -> None:
    said: list[str] = []
    with two(kind, str(tmp_path)) as (one, other):
        for number in range(25):
            for name, process in (("one", one), ("two", other)):
                assert process.ask_until_free(f"say s turn-{number}-{name}") == f"{name}: turn-{number}-{name}"
                said += [f"turn-{number}-{name}", f"{name}: turn-{number}-{name}"]
        assert (one.ask("drain"), other.ask("drain")) == ("drained", "drained")
    assert history(kind, str(tmp_path), "s") == said


class Unhurried:
    """Sessions whose owners look for requests once in an hour, so that they hear of them or never know."""

    def __init__(self, kind: str, where: str) -> None:
        self._place = place(kind, where)
        self.key = f"{self._place.key} {id(self)}"

    def open_store(self) -> SessionStore:
        store = self._place.open_store()

        class Rarely(type(store)):  # type: ignore[misc] - each kind of store
            @property
            def capabilities(self) -> StoreCapabilities:
                found = super().capabilities
                return replace(found, sharing=replace(found.sharing, look_every_s=3600.0, yields_within_s=18_000.0))

        store.__class__ = Rarely
        return store


def spec_of(name: str) -> AgentSpec:
    model = ScriptedModel([lambda messages, *rest: f"{name}: {text_of(messages[-1])}"], loop=True)
    return AgentSpec(model=model)


async def turns(runtime: Runtime, name: str, count: int) -> None:
    session = runtime.agent(spec_of(name)).session("s")
    for number in range(count):
        assert str(await session.invoke(f"{number}")) == f"{name}: {number}"


def check_turns(kind: str, where: str, names: tuple[str, ...], count: int) -> None:
    """Each of them made so many turns, in order, and all are there once."""
    said = history(kind, where, "s")
    assert len(said) == 2 * count * len(names)
    for name in names:
        answers = [text for text in said if text.startswith(f"{name}: ")]
        assert answers == [f"{name}: {number}" for number in range(count)]


@pytest.mark.anyio
@pytest.mark.parametrize("kind", IN_FOLDERS)
async def test_two_hosts_in_one_loop_hear_each_other(kind: str, tmp_path: Path) -> None:
    places = [Unhurried(kind, str(tmp_path)) for _ in range(2)]
    async with (
        Runtime(sessions=places[0]) as one,
        Runtime(sessions=places[1]) as two,
        anyio.create_task_group() as group,
    ):
        group.start_soon(turns, one, "one", 10)
        group.start_soon(turns, two, "two", 10)
    await anyio.to_thread.run_sync(check_turns, kind, str(tmp_path), ("one", "two"), 10)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", IN_FOLDERS)
async def test_who_waits_for_a_session_hears_of_the_end_of_a_call_outside_a_block(kind: str, tmp_path: Path) -> None:
    asked, go = anyio.Event(), anyio.Event()

    class Slow(ScriptedModel):
        async def stream(self, *arguments: Any, **options: Any) -> AsyncIterator[dict[str, Any]]:
            asked.set()
            await go.wait()
            async for event in super().stream(*arguments, **options):
                yield event

    agent = Agent(
        Slow(["bare: ok"], loop=True),
        callback_handler=None,
        session_manager=PlacedSession("s", Unhurried(kind, str(tmp_path))),
    )
    async with Runtime(sessions=Unhurried(kind, str(tmp_path))) as runtime:
        for _ in range(3):
            asked, go = anyio.Event(), anyio.Event()
            with anyio.fail_after(20):
                async with anyio.create_task_group() as group:
                    group.start_soon(agent.invoke_async, "go")
                    await asked.wait()
                    group.start_soon(turns, runtime, "other", 1)
                    await anyio.sleep(0.1)
                    go.set()
    await agent.shutdown_async()


@pytest.mark.parametrize("kind", IN_FOLDERS)
def test_two_loops_of_one_process_hear_each_other(kind: str, tmp_path: Path) -> None:
    async def live(name: str) -> None:
        async with Runtime(sessions=Unhurried(kind, str(tmp_path))) as runtime:
            await turns(runtime, name, 10)
            await anyio.to_thread.run_sync(both.wait)  # Idle, and still the owner: the other one has to be heard.

    anyio.run(place(kind, str(tmp_path)).open_store().aclose)  # Loads modules, which two loops would wait for.
    both = threading.Barrier(2, timeout=40)
    threads = [
        threading.Thread(target=lambda name=name: anyio.run(live, name, backend=name)) for name in ("asyncio", "trio")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_turns(kind, str(tmp_path), ("asyncio", "trio"), 10)
