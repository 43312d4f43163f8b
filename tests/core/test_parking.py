"""Where a conversation stands among its tools: what a running agent keeps is what its journal says."""

from __future__ import annotations

import random

from journal_driver import Driver, result_of

from repertory.core.interrupts import Interrupt
from repertory.core.journal.records import Branched, Interrupted, Resumed, ToolFinished, ToolStarted
from repertory.core.journal.restore import messages_of, records_of, restore
from repertory.core.journal.standing import standing_of, standing_records
from repertory.core.messages import Json, tool_uses
from repertory.core.opening import interrupt_for
from repertory.core.standing import Standing, Start

IDS = ["use-1-0", "use-1-1", "use-1-2"]


def asked() -> Driver:
    """A journal whose last message asks for three tools."""
    driver = Driver()
    driver.do_prompt(1)
    driver.do_ask(2)
    assert driver.waiting() == IDS
    return driver


class Live:
    """A step that is interrupted again and again, in a journal and as a running agent keeps it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.driver = asked()
        self.standing = Standing(last=self.driver.fold.last_message)

    def crash(self) -> None:
        """Some tools start, a few end, and then nobody knows more."""
        for use_id in self.rng.sample(self.open(), self.rng.randint(0, len(self.open()))):
            start = self.start(use_id)
            self.standing = self.standing.begun(use_id, start)
            if self.rng.random() < 0.3:
                result = result_of(use_id, start.attempt)
                self.driver.append(ToolFinished(at=1.0, tool_use_id=use_id, result=result))
                self.standing = self.standing.ended(result)

    def start(self, use_id: str) -> Start:
        last = self.standing.starts.get(use_id, Start(0, f"key of {use_id}"))
        start = Start(last.attempt + 1, last.key)
        self.driver.append(
            ToolStarted(at=1.0, tool_use_id=use_id, name="tool", idempotency_key=start.key, attempt=start.attempt)
        )
        return start

    def open(self) -> list[str]:
        return [use_id for use_id in IDS if use_id not in self.standing.finished]

    def ask_about_outcomes(self) -> None:
        message = self.standing.last
        assert message is not None
        uses = [use for use in tool_uses(message) if use["toolUseId"] in self.standing.started]
        new = self.standing.not_asked([interrupt_for(use) for use in uses])
        if new:
            self.driver.append(Interrupted(at=1.0, interrupts=new))
            self.standing = self.standing.asked(new)

    def answer(self) -> None:
        some = self.rng.sample(self.standing.waiting, self.rng.randint(0, len(self.standing.waiting)))
        responses: dict[str, Json] = {one.id: "retry" for one in some}
        if responses:
            self.driver.append(Resumed(at=1.0, responses=responses))
            self.standing = self.standing.answered(responses)

    def park(self) -> None:
        """Some tools run: a few end, the others ask."""
        ran = self.rng.sample(self.open(), self.rng.randint(0, len(self.open())))
        parked: dict[str, Start] = {}
        results = []
        for use_id in ran:
            start = self.start(use_id)
            if self.rng.random() < 0.3:
                results.append(result_of(use_id, start.attempt))
                self.driver.append(ToolFinished(at=1.0, tool_use_id=use_id, result=results[-1]))
            else:
                parked[use_id] = start
        number = self.rng.randint(0, 3)
        interrupts = (Interrupt(id=f"question-{number}", name="n", reason=number),)
        self.driver.append(Interrupted(at=1.0, interrupts=interrupts, parked=tuple(parked)))
        self.standing = self.standing.parked(results, interrupts, parked)

    def check(self) -> None:
        assert standing_of(self.driver.fold) == self.standing
        assert standing_of(restore(self.driver.rows).fold.image()) == self.standing
        low = self.driver.rows[-1].low
        assert standing_of(restore(self.driver.rows[low - 1 :]).fold) == self.standing


def test_what_a_running_agent_keeps_is_what_its_journal_says(rng: random.Random) -> None:
    for _ in range(100):
        live = Live(rng)
        for _ in range(8):
            rng.choice([live.crash, live.ask_about_outcomes, live.answer, live.park, live.park])()
            live.check()


def test_what_is_stated_anew_behind_a_branch_is_what_stood_there(rng: random.Random) -> None:
    for _ in range(50):
        live = Live(rng)
        for _ in range(5):
            rng.choice([live.crash, live.answer, live.park])()
        driver, fold = live.driver, live.driver.fold
        standing = list(standing_records(fold, 1.0))
        branched = Branched(
            at=1.0,
            position=fold.last_seq,
            last=fold.last_message_seq,
            message_count=fold.message_count,
            turns=fold.turns,
            view=fold.shown.view,
        )
        driver.rows.append(driver.appender.rewind(branched, messages_of(records_of(driver.rows))))
        assert standing_of(driver.fold) == Standing(last=fold.last_message)
        driver.append(*standing)
        live.check()


def test_the_message_that_follows_settles_everything(rng: random.Random) -> None:
    live = Live(rng)
    for _ in range(5):
        live.park()
    live.driver.do_results(1)
    assert standing_of(live.driver.fold) == Standing(last=live.driver.fold.last_message)
