"""The demonstration runs, leaves nothing behind, and its checks would notice a loss."""

from __future__ import annotations

import os
import random
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from examples.demo.__main__ import DIALOGUE, read_dialogue
from examples.demo.demonstration import Evidence, check
from examples.demo.exchange import Exchange, Fate, exchanges, fate
from examples.demo.orders import Order
from repertory.core.messages import Message
from repertory.errors import Corrupt, Invalid, NotFound
from tests.source_tree import ROOT

USE = {"toolUseId": "use", "name": "place_order", "input": {"item": "flour"}}
RESULT = {"toolUseId": "use", "status": "success", "content": [{"text": "receipt"}]}
MESSAGES: Sequence[Message] = [
    {"role": "user", "content": [{"text": "one"}]},
    {"role": "assistant", "content": [{"text": "first"}]},
    {"role": "user", "content": [{"text": "two"}]},
    {"role": "assistant", "content": [{"toolUse": USE}]},
    {"role": "user", "content": [{"toolResult": RESULT}]},
    {"role": "assistant", "content": [{"text": "second"}]},
    {"role": "user", "content": [{"text": "three"}]},
]  # type: ignore[list-item]
GOOD = Evidence(
    session_id="ada",
    acknowledged=[Exchange("one", "first"), Exchange("two", "second")],
    in_flight="three",
    messages=MESSAGES,
    orders=[Order(key="key", tool_use_id="use", item="flour", receipt="receipt")],
    owner=None,
)


def wrong(evidence: Evidence) -> dict[int, int]:
    """Which claims fail, by their place, and how often."""
    return {number: len(one.problems) for number, one in enumerate(check([GOOD, evidence])) if one.problems}


def test_evidence_without_a_loss_passes_every_check() -> None:
    assert wrong(GOOD) == {}
    assert [one.count for one in check([GOOD])] == [2, 3, 7, 1, 1, 1, 1]


def test_an_acknowledged_turn_that_is_gone_is_found() -> None:
    for lost in (MESSAGES[:2], MESSAGES[2:], MESSAGES[:3], []):
        assert 0 in wrong(replace(GOOD, messages=lost))


def test_any_acknowledged_turn_that_is_removed_is_found(rng: random.Random) -> None:
    count = 40
    told = [Exchange(f"prompt {number}", f"answer {number}") for number in range(count)]
    removed = rng.randrange(count)
    stored: list[Message] = []
    for number, one in enumerate(told):
        if number != removed:
            stored.append({"role": "user", "content": [{"text": one.prompt}]})
            stored.append({"role": "assistant", "content": [{"text": one.answer or ""}]})
    assert 0 in wrong(replace(GOOD, acknowledged=told, in_flight=None, messages=stored, orders=[]))


def test_an_answer_that_is_not_the_one_that_was_told_is_found() -> None:
    assert wrong(replace(GOOD, acknowledged=[Exchange("one", "other"), Exchange("two", "second")])) == {0: 1}


def test_a_turn_that_nobody_asked_for_is_found() -> None:
    assert wrong(replace(GOOD, in_flight=None)) == {1: 1}
    assert 1 in wrong(replace(GOOD, messages=[*MESSAGES, *MESSAGES[6:]]))


def test_a_tool_use_without_its_result_is_found() -> None:
    assert 2 in wrong(replace(GOOD, messages=[*MESSAGES[:4], *MESSAGES[5:]]))


def test_an_order_that_was_placed_twice_is_found() -> None:
    assert wrong(replace(GOOD, orders=[*GOOD.orders, *GOOD.orders])) == {3: 1}


def test_a_receipt_without_an_order_is_found() -> None:
    assert wrong(replace(GOOD, orders=[])) == {4: 1}


def test_an_order_that_the_conversation_does_not_know_is_found() -> None:
    other = Order(key="other", tool_use_id="other", item="bags", receipt="receipt")
    assert wrong(replace(GOOD, orders=[*GOOD.orders, other])) == {5: 1}


def test_a_session_that_still_has_an_owner_is_found() -> None:
    assert wrong(replace(GOOD, owner="somebody")) == {6: 1}


def test_the_fate_of_a_prompt_is_read_from_the_history() -> None:
    assert exchanges(MESSAGES)[-1] == Exchange("three", None)
    assert fate(MESSAGES[:6], 2, "three") is Fate.UNHEARD
    assert fate(MESSAGES, 2, "three") is Fate.UNANSWERED
    assert fate(MESSAGES[:6], 1, "two") is Fate.ANSWERED
    assert fate(MESSAGES[:4], 1, "two") is Fate.UNANSWERED
    with pytest.raises(Corrupt):
        fate(MESSAGES, 1, "two")


@pytest.mark.real_time
def test_a_dialogue_is_its_lines_without_comments(tmp_path: Path) -> None:
    assert 12 <= len(read_dialogue(DIALOGUE)) <= 16
    (tmp_path / "empty").write_text("# nothing\n\n")
    with pytest.raises(Invalid):
        read_dialogue(tmp_path / "empty")
    with pytest.raises(NotFound, match="--dialogue"):
        read_dialogue(tmp_path / "none")


@contextmanager
def started(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The demonstration in a process of its own, offline, with its temporary files in `folder`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "--model", "offline", *options],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_worker(process: subprocess.Popen[str]) -> int:
    """The process id of the first worker, once it is up; the timeout of the test bounds the wait."""
    assert process.stdout is not None
    while (found := re.search(r"worker (\d+) is up", process.stdout.readline())) is None:
        assert process.poll() is None
    return int(found[1])


def workers_in(folder: Path) -> list[str]:
    """Command lines of processes that work in a folder."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile
        if str(folder) in command:
            found.append(command)
    return found


@pytest.mark.real_time
def test_the_demonstration_loses_nothing_and_leaves_nothing_behind(tmp_path: Path, seed: int) -> None:
    with started(tmp_path, "--seconds", "4", "--sessions", "3", "--kills", "3", "--seed", str(seed)) as process:
        out, err = process.communicate(timeout=50)
    assert process.returncode == 0, out + err
    assert err == ""
    assert out.count("killed with SIGKILL") == 3
    assert "nothing was lost" in out
    assert list(tmp_path.iterdir()) == []
    assert workers_in(tmp_path) == []


@pytest.mark.real_time
@pytest.mark.timeout(150)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demonstration_that_is_stopped_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path, "--seconds", "30") as process:
        first_worker(process)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT
    assert err == ""
    assert list(tmp_path.iterdir()) == []
    assert workers_in(tmp_path) == []


@pytest.mark.real_time
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waiting for somebody else's child needs Linux")
def test_a_worker_does_not_outlive_whoever_started_it(tmp_path: Path) -> None:
    with started(tmp_path, "--seconds", "30") as process:
        worker = os.pidfd_open(first_worker(process))
        process.kill()
        ended, _, _ = select.select([worker], [], [], 30)
        os.close(worker)
    assert ended
