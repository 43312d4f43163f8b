"""Two processes that share sessions: an idle one gives them up when the other asks, and nothing said is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from sharing_process import place

from repertory import AgentSpec, Runtime, ScriptedModel
from repertory.core.messages import text_of
from tests.backends.objects.moto_s3 import moto_s3

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parents[2]
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

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)


@contextmanager
def sharer(name: str, kind: str, where: str, loop: str) -> Iterator[Sharer]:
    program = [sys.executable, "-m", "tests.app.sharing_process", name, kind, where, loop]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as process:
        try:
            yield Sharer(process)
        finally:
            process.kill()


@contextmanager
def two(kind: str, where: str) -> Iterator[tuple[Sharer, Sharer]]:
    """One on asyncio and one on trio."""
    with sharer("one", kind, where, "asyncio") as one, sharer("two", kind, where, "trio") as other:
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


def test_an_owner_that_is_killed_while_it_is_asked_leaves_the_session_free(tmp_path: Path) -> None:
    with two("sqlite", str(tmp_path)) as (one, other):
        assert one.ask("say s first") == "one: first"
        assert one.ask("slow s 600") == "begun"
        other.tell("say s second")
        one.kill()
        assert other.hear() == "two: second"
        assert other.ask("drain") == "drained"
