"""A redaction erases what repeats the message and is settled, names what repeats it and is in force, loses nothing."""

from __future__ import annotations

import random

from repertory.core.interrupts import Interrupt
from repertory.core.journal.codec import dump
from repertory.core.journal.records import (
    Interrupted,
    NodeChanged,
    Resumed,
    StateChanged,
    ToolFinished,
    ToolStarted,
)
from repertory.core.journal.redact import Texts, only_in, redact, without_text
from repertory.core.journal.restore import restore
from repertory.core.messages import Message
from repertory.core.window.decision import WindowPlan
from tests.core.journal.journal_driver import COMMANDS, Driver

SAID = 'my "secret" is 4711, \u00e4\u00f6\u00fc'
OTHER: Message = {"role": "user", "content": [{"text": "nothing of note"}]}


def telling() -> Driver:
    driver = Driver()
    driver.say({"role": "user", "content": [{"text": SAID}]}, new_turn=True)
    driver.say({"role": "assistant", "content": [{"text": "I see."}]})
    return driver


def holding(driver: Driver) -> list[int]:
    texts = Texts([SAID])
    return [row.seq for row in driver.rows if texts.in_row(row)]


def redact_first(driver: Driver) -> tuple[set[str], list[int]]:
    """What is named, and the rows that hold the text afterwards. The same is shown and restored as before."""
    before = driver.image()
    said = {"role": "user", "content": [{"text": SAID}]}
    done = redact(driver.appender, driver.rows, 1, without_text(said, "[gone]"), driver.at())  # type: ignore[arg-type]
    for seq in done.erase:
        driver.rows[seq - 1] = driver.rows[seq - 1].without_content()
    driver.rows.extend(done.rows)
    assert restore(driver.rows).fold.image() == driver.image()
    assert driver.image().state == before.state
    assert [seq for seq, _ in driver.image().shown] == [seq for seq, _ in before.shown]
    return {each.what for each in done.left}, holding(driver)


def test_a_state_that_once_said_it_is_erased_and_one_that_does_is_named() -> None:
    driver = telling()
    driver.append(StateChanged(at=1.0, set={"note": SAID, "other": 1}), StateChanged(at=1.0, set={"note": "none"}))
    assert redact_first(driver) == (set(), [])
    driver = telling()
    driver.append(StateChanged(at=1.0, set={"note": [{"deep": f"<{SAID}>"}], "other": 1}))
    named, held = redact_first(driver)
    assert named == {"state note", "state"}
    assert held == [3]


def test_a_key_of_the_state_counts_as_well() -> None:
    driver = telling()
    driver.append(StateChanged(at=1.0, set={SAID: 1}))
    assert f"state {SAID}" in redact_first(driver)[0]


def test_a_summary_that_was_replaced_is_erased_and_the_one_in_force_is_named() -> None:
    quoting: Message = {"role": "user", "content": [{"text": f"They said: {SAID}"}]}
    driver = telling()
    driver.plan(WindowPlan(drop=1), quoting)
    driver.plan(WindowPlan(drop=1), OTHER)
    assert redact_first(driver) == (set(), [])
    driver = telling()
    driver.plan(WindowPlan(drop=1), quoting)
    assert "summary" in redact_first(driver)[0]


def asked() -> tuple[Driver, dict[str, object]]:
    """A tool that says it, and a question that does."""
    driver = telling()
    driver.run([("ask", 0)])
    (use_id,) = driver.waiting()
    result: dict[str, object] = {"toolUseId": use_id, "status": "success", "content": [{"text": SAID}]}
    driver.append(
        ToolStarted(at=1.0, tool_use_id=use_id, name="tool", idempotency_key="key"),
        Interrupted(at=1.0, interrupts=(Interrupt(id="i", name="ask", reason=SAID),)),
        ToolFinished(at=1.0, tool_use_id=use_id, result=result),  # type: ignore[arg-type]
    )
    return driver, result


def test_what_a_turn_is_told_is_named_while_it_runs_and_erased_when_it_is_over() -> None:
    driver, _ = asked()
    assert redact_first(driver) == ({"tool_finished", "interrupt"}, [5, 6])
    driver, result = asked()
    driver.say({"role": "user", "content": [{"toolResult": result}]})  # type: ignore[typeddict-item]
    driver.run([("answer", 1)])
    assert redact_first(driver) == ({"message"}, [7])


def test_a_node_of_an_earlier_run_is_erased_and_one_of_this_run_is_named() -> None:
    driver = telling()
    driver.append(NodeChanged(at=1.0, run=1, node="a", status="completed", result=SAID))
    assert redact_first(driver) == ({"node"}, [3])
    driver = telling()
    driver.append(NodeChanged(at=1.0, run=1, node="a", status="completed", result=SAID))
    driver.append(NodeChanged(at=1.0, run=2, node="a", status="completed", result=1))
    assert redact_first(driver) == (set(), [])


def test_texts_are_found_as_they_are_spelled_and_short_ones_are_not_looked_for() -> None:
    message: Message = {
        "role": "assistant",
        "content": [
            {"text": "hi"},
            {"text": 'a longer "text"\n\ud800'},
            {"toolUse": {"toolUseId": "use-1", "name": "look_up", "input": {"query": "what is asked", "n": 12345678}}},
        ],
    }
    assert only_in(message, without_text(message, "[gone]")) == ('a longer "text"\n\ud800', "what is asked", "12345678")
    driver = Driver()
    driver.say({"role": "user", "content": [{"text": '<<a longer "text"\n>>'}]}, new_turn=True)
    driver.say({"role": "assistant", "content": [{"text": "what is asked?"}]})
    assert Texts(['a longer "text"\n']).in_row(driver.rows[0])
    older = dump({"message": {"role": "user", "content": [{"text": '<<a longer "text"\n\ud800>>'}]}})
    assert Texts(['a longer "text"\n\ud800']).in_row(driver.rows[0]._replace(body=older))
    assert Texts(["what is asked"]).in_row(driver.rows[1])
    assert not Texts(["what is asked"]).in_row(driver.rows[1].without_content())


def test_a_call_that_answered_a_question_finds_its_turn_when_its_response_is_erased() -> None:
    """The response may hold what the tool's result says, so it is erased with that, also a second time."""
    driver = Driver()
    driver.say({"role": "user", "content": [{"text": "go"}]}, new_turn=True, token="asks")
    driver.say({"role": "assistant", "content": [{"toolUse": {"toolUseId": "u", "name": "ask", "input": {}}}]})
    driver.append(Interrupted(at=1.0, interrupts=(Interrupt(id="one", name="ask", reason=None),)))
    driver.append(Resumed(at=2.0, responses={"one": SAID}, joined=("responds",)))
    result: Message = {"role": "user", "content": [{"toolResult": {"toolUseId": "u", "content": [{"text": SAID}]}}]}
    driver.say(result)
    driver.say({"role": "assistant", "content": [{"text": "done"}]})
    for text in ("[gone]", "[gone, too]"):
        done = redact(driver.appender, driver.rows, 5, without_text(result, text), driver.at())
        for seq in done.erase:
            driver.rows[seq - 1] = driver.rows[seq - 1].without_content()
        driver.rows.extend(done.rows)
        assert holding(driver) == []
        fold = restore(driver.rows).fold
        assert fold.finished_turns.keys() == {"asks", "responds"}
        assert fold.image() == driver.image()


def test_a_redaction_of_any_message_leaves_what_stands_as_it_was(rng: random.Random) -> None:
    done = 0
    while done < 40:
        driver = Driver()
        driver.run([("prompt", 1), *((rng.choice(COMMANDS), rng.randrange(50)) for _ in range(rng.randint(5, 40)))])
        before = driver.image()
        count = len(driver.rows)
        driver.do_redact(rng.randrange(1000))
        if len(driver.rows) == count:
            continue
        after = restore(driver.rows).fold.image()
        assert after == driver.image()
        assert (after.state, set(after.open_tools), after.run) == (before.state, set(before.open_tools), before.run)
        assert (set(after.nodes), after.frontier) == (set(before.nodes), before.frontier)
        assert (after.interrupts, after.responses) == (before.interrupts, before.responses)
        assert [seq for seq, _ in after.shown] == [seq for seq, _ in before.shown]
        done += 1
