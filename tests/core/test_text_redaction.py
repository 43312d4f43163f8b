"""A text that is taken back is gone from every row, and everything else stands as before."""

from __future__ import annotations

import base64
import random
from typing import Any

import pytest
from msgspec.structs import replace

from repertory.core.history.redact_text import Words, redact_text
from repertory.core.interrupts import Interrupt
from repertory.core.journal.image import Anchors, Image
from repertory.core.journal.records import (
    CursorMoved,
    Interrupted,
    NodeChanged,
    Resumed,
    SnapshotTaken,
    StateChanged,
    ToolFinished,
    ToolStarted,
)
from repertory.core.journal.redact import Texts, redact
from repertory.core.journal.restore import messages_of, records_of, restore
from repertory.core.journal.whole_journal import read_whole
from repertory.core.messages import Message, tool_uses
from repertory.core.window.decision import WindowPlan
from repertory.errors import Invalid
from tests.core.journal.journal_driver import COMMANDS, Driver

SECRET = "Behemoth 4711"
WORDS = Words(SECRET, "[gone]")


def take_back(driver: Driver, words: Words = WORDS) -> set[str]:
    """What is named as left. What is restored equals what is live."""
    done, _ = redact_text(driver.appender, driver.rows, words, driver.at())
    for seq in done.erase:
        driver.rows[seq - 1] = driver.rows[seq - 1].without_content()
    driver.rows.extend(done.rows)
    assert standing(restore(driver.rows).fold.image()) == standing(driver.image())
    low = driver.rows[-1].low
    assert standing(restore(driver.rows[low - 1 :]).fold.image()) == standing(driver.image())
    return {each.what for each in done.left}


def standing(image: Image) -> Image:
    """What it says, whichever rows say it. A restored one remembers no more tokens than its rows tell of."""
    return replace(image, anchors=Anchors(), finished_turns={}, tokens={})


def held(driver: Driver, text: str = SECRET) -> list[int]:
    texts = Texts([text])
    return [row.seq for row in driver.rows if texts.in_row(row)]


def said(role: str, *content: dict[str, Any]) -> Message:
    return {"role": role, "content": list(content)}  # type: ignore[typeddict-item]


def test_a_state_that_was_changed_after_a_message_was_redacted_is_found_by_the_text() -> None:
    driver = Driver()
    driver.say(said("user", {"text": f"I am {SECRET}."}), new_turn=True)
    driver.say(said("assistant", {"text": "Noted."}))
    driver.append(StateChanged(at=1.0, set={"who": {"name": SECRET}, "n": 1}))
    driver.do_redact(0)
    driver.append(StateChanged(at=2.0, set={"who": None}))
    assert held(driver) == [3]
    assert take_back(driver) == set()
    assert (held(driver), driver.image().state) == ([], {"who": None, "n": 1})


def test_everything_in_force_says_the_replacement_and_stands_as_before() -> None:
    driver = Driver()
    driver.say(said("user", {"text": f"I am {SECRET}."}), new_turn=True, token="pay")
    driver.say(said("assistant", {"reasoningContent": {"reasoningText": {"text": SECRET}}}, {"text": "Hello."}))
    driver.append(StateChanged(at=1.0, set={f"of {SECRET}": [{"card": 47110000, "who": f"<{SECRET}>"}]}))
    driver.plan(WindowPlan(drop=1, reason="summary"), said("user", {"text": f"It is {SECRET}."}))
    driver.append(SnapshotTaken(at=1.0, label="here", metadata={"why": SECRET}))
    driver.append(CursorMoved(at=1.0, positions={"m": 2}, kept={"m": {"pending": [{"key": "k", "content": SECRET}]}}))
    use = {"toolUseId": "t1", "name": "ask", "input": {"of": SECRET}}
    driver.say(said("user", {"text": "go on"}), new_turn=True)
    driver.say(said("assistant", {"toolUse": use}))
    driver.append(ToolStarted(at=1.0, tool_use_id="t1", name="ask", idempotency_key="k1"))
    before = driver.image()
    with pytest.raises(Invalid, match="waits for its tools"):
        take_back(driver)
    assert driver.image() == before
    finished = {"toolUseId": "t1", "status": "success", "content": [{"json": {"name": SECRET}}]}
    driver.say(said("user", {"toolResult": finished}))
    driver.append(Interrupted(at=1.0, interrupts=(Interrupt(id="i1", name="ask", reason=f"is it {SECRET}?"),)))
    driver.append(Resumed(at=1.0, responses={"i1": {"yes": SECRET}}))
    before = driver.image()
    assert take_back(driver) == set()
    image = driver.image()
    assert held(driver) == []
    assert image.state == {"of [gone]": [{"card": 47110000, "who": "<[gone]>"}]}
    assert image.view.summary == said("user", {"text": "It is [gone]."})
    assert image.kept == {"m": {"pending": [{"key": "k", "content": "[gone]"}]}}
    assert [one.reason for one in image.questions] == ["is it [gone]?"]
    assert image.responses == {"i1": {"yes": "[gone]"}}
    assert image.last_message == said("user", {"toolResult": {**finished, "content": [{"json": {"name": "[gone]"}}]}})
    assert [seq for seq, _ in image.shown] == [seq for seq, _ in before.shown]
    assert driver.fold.finished_turns.keys() == {"pay"}
    journal = read_whole(driver.rows, session_id="s", agent_id="agent")
    mark = journal.snapshots()[-1][1]
    assert (mark.metadata, journal.position("here")) == ({"why": "[gone]"}, 4)


def test_a_number_is_found_as_well() -> None:
    driver = Driver()
    driver.append(StateChanged(at=1.0, set={"card": 4111222233334444, "other": 1}))
    assert take_back(driver, Words("4111222233334444", "[card]")) == set()
    assert driver.image().state == {"card": "[card]", "other": 1}


def document(kind: str, data: bytes) -> dict[str, Any]:
    return {"document": {"name": "d", "format": kind, "source": {"bytes": data}}}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("fill", ["", "x", "é", "日本"])
def test_a_text_document_says_the_replacement_wherever_it_stands(encoding: str, fill: str) -> None:
    """Base64 has three forms of a text, by the place where it begins."""
    data = f"{fill}My name is {SECRET}. {SECRET}!".encode(encoding)
    gone = f"{fill}My name is [gone]. [gone]!".encode(encoding)
    driver = Driver()
    driver.say(said("user", {"text": "Read."}, document("txt", data)), new_turn=True)
    driver.say(said("assistant", {"toolUse": {"toolUseId": "t", "name": "ask", "input": {}}}))
    driver.append(ToolStarted(at=1.0, tool_use_id="t", name="ask", idempotency_key="k"))
    result = {"toolUseId": "t", "status": "success", "content": [{"text": "Here."}, document("csv", data)]}
    driver.append(ToolFinished(at=1.0, tool_use_id="t", result=result))  # type: ignore[arg-type]
    driver.say(said("user", {"toolResult": result}))
    assert held(driver) == [1, 4, 5]
    assert take_back(driver) == set()
    assert held(driver) == []
    shown = [message for _, message in driver.image().shown]
    assert shown[0] == said("user", {"text": "Read."}, document("txt", gone))
    assert shown[2] == said("user", {"toolResult": {**result, "content": [{"text": "Here."}, document("csv", gone)]}})


def test_a_file_that_is_no_text_gives_way_as_a_whole_and_others_stay_as_they_are() -> None:
    driver = Driver()
    image = {"image": {"format": "png", "source": {"bytes": f"\x89PNG {SECRET}".encode()}}}
    other = document("pdf", b"%PDF Behemoth")
    driver.say(said("user", image, other, document("pdf", SECRET.encode("utf-16-be"))), new_turn=True)
    assert take_back(driver) == set()
    assert driver.image().last_message == said("user", {"text": "[gone]"}, other, {"text": "[gone]"})


def test_a_redacted_message_names_the_documents_that_hold_its_text() -> None:
    driver = Driver()
    driver.say(said("user", {"text": SECRET}), new_turn=True)
    driver.say(said("assistant", {"text": "Yes."}))
    driver.say(said("user", document("md", f"# {SECRET}".encode())), new_turn=True)
    done = redact(driver.appender, driver.rows, 1, said("user", {"text": "[gone]"}), 2.0)
    assert [(each.seq, each.what) for each in done.left] == [(3, "message")]


def test_a_text_that_looks_like_bytes_is_a_text() -> None:
    driver = Driver()
    looks: Any = {"$bytes": base64.b64encode(SECRET.encode()).decode()}
    driver.say(said("user", {"text": f"{looks}".replace("'", '"').replace(" ", "")}), new_turn=True)
    driver.append(StateChanged(at=1.0, set={"a": looks}))
    assert held(driver) == []
    assert take_back(driver) == set()


def test_a_tool_result_that_no_message_holds_yet_stays_a_result() -> None:
    driver = Driver()
    driver.say(said("user", {"text": "hello"}), new_turn=True)
    driver.say(said("assistant", {"toolUse": {"toolUseId": "t1", "name": "ask", "input": {}}}))
    driver.append(ToolStarted(at=1.0, tool_use_id="t1", name="ask", idempotency_key="k1"))
    driver.append(
        ToolFinished(
            at=1.0,
            tool_use_id="t1",
            result={"toolUseId": "t1", "status": "success", "content": [{"text": f"It is {SECRET}."}]},
        )
    )
    assert take_back(driver) == set()
    assert driver.image().finished_tools["t1"]["content"] == [{"text": "It is [gone]."}]
    assert held(driver) == []


def run_of(driver: Driver) -> None:
    def node(name: str, number: int, **more: Any) -> NodeChanged:
        status = "completed" if name else "started"
        return NodeChanged(at=1.0, run=number, node=name, status=status, **more)  # type: ignore[arg-type]

    driver.append(node("", 1, frontier=("b",), data={"task": f"find {SECRET}"}))
    driver.append(node("b", 1, result={"message": f"found {SECRET}"}, data={"places": [1]}))
    driver.append(node("", 2, frontier=("b", "a"), data={"task": "again"}))
    driver.append(node("b", 2, frontier=("a",), result={"message": f"found {SECRET}"}, data={"places": [1]}))
    driver.append(node("a", 2, result={"message": "nothing"}, data={"places": [2], "handed": ["b", f"ask {SECRET}"]}))


def test_results_of_nodes_of_the_running_and_of_earlier_runs_are_gone() -> None:
    driver = Driver()
    run_of(driver)
    before = driver.image()
    assert take_back(driver) == set()
    image = driver.image()
    assert held(driver) == []
    assert (image.run, list(image.nodes), image.frontier) == (2, ["", "b", "a"], before.frontier)
    assert image.nodes["b"].result == {"message": "found [gone]"}
    assert image.nodes["a"].data["handed"] == ["b", "ask [gone]"]
    journal = read_whole(driver.rows, session_id="s", agent_id="agent")
    assert list(journal.fold_at(journal.last_seq).nodes) == ["", "b", "a"]
    with pytest.raises(Invalid, match="what the run had come to"):
        journal.fold_at(2)


def test_what_only_names_something_is_left_and_reported() -> None:
    driver = Driver()
    driver.say(said("user", {"text": "hello"}), new_turn=True, token=SECRET)
    assert take_back(driver) == {"message"}
    driver = Driver()
    driver.say(said("user", {"text": "hello"}), new_turn=True)
    driver.say(said("assistant", {"toolUse": {"toolUseId": SECRET, "name": "ask", "input": {}}}))
    driver.append(ToolStarted(at=1.0, tool_use_id=SECRET, name="ask", idempotency_key="k"))
    before = driver.image()
    assert take_back(driver) == {"message", "tool_started"}
    assert driver.image() == before


@pytest.mark.parametrize(
    ("text", "instead", "why"),
    [("abc", "[gone]", "too short"), (SECRET, " ", "no empty text"), (SECRET, f"<{SECRET}>", "says the text again")],
)
def test_texts_that_cannot_be_taken_back_are_refused(text: str, instead: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        Words(text, instead)


@pytest.mark.parametrize("seed", range(60))
def test_no_row_of_any_journal_says_a_text_that_was_taken_back(seed: int) -> None:
    """Texts of random journals: `prompt 12`, `answer 3`, `summary 7`; `NodeChanged` results are numbers there."""
    rng = random.Random(seed)
    driver = Driver()
    driver.run([("prompt", 1), *((rng.choice(COMMANDS), rng.randrange(1000)) for _ in range(rng.randint(5, 60)))])
    if driver.waiting():
        driver.do_results(1)
    texts = sorted({text for message in shown_and_said(driver) for text in words_of(message)})
    for text in rng.sample(texts, min(3, len(texts))):
        before = driver.image()
        done = take_back(driver, Words(text, "[gone]"))
        assert not done, (seed, text)
        assert held(driver, text) == [], (seed, text)
        assert same_but_for(before, driver.image()), (seed, text)
    driver.run([("prompt", 1), ("answer", 1), *((rng.choice(COMMANDS), rng.randrange(1000)) for _ in range(20))])
    assert standing(restore(driver.rows).fold.image()) == standing(driver.image())


def shown_and_said(driver: Driver) -> list[Message]:
    return [*messages_of(records_of(driver.rows)).values(), *driver.fold.shown.messages()]


def words_of(message: Message) -> list[str]:
    return [block["text"] for block in message["content"] if len(block.get("text", "")) >= 8]


def same_but_for(before: Image, after: Image) -> bool:
    def outline(image: Image) -> object:
        tools = [[use["toolUseId"] for use in tool_uses(message)] for _, message in image.shown]
        shown = [seq for seq, _ in image.shown]
        return shown, tools, image.turns, image.message_count, image.state.keys(), image.run, image.frontier

    return outline(before) == outline(after)
