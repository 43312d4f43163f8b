"""Where a conversation stands among its tools: what was done to it, step by step, is what its journal says."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from repertory.core.interrupts import Interrupt, outcome_id, unmarked
from repertory.core.journal.pending_tools import PendingTools, Start, pending_tools_of, standing_records
from repertory.core.journal.records import Branched, Interrupted, Resumed, ToolFinished, ToolStarted
from repertory.core.journal.restore import messages_of, records_of, restore
from repertory.core.messages import Json, ToolResult, tool_uses
from repertory.core.turns.turn_start import interrupt_for
from tests.core.journal.journal_driver import Driver, result_of

IDS = ["use-1-0", "use-1-1", "use-1-2"]


def asked() -> Driver:
    """A journal whose last message asks for three tools."""
    driver = Driver()
    driver.do_prompt(1)
    driver.do_ask(2)
    assert driver.waiting() == IDS
    return driver


def begun(standing: PendingTools, use_id: str, start: Start) -> PendingTools:
    """A tool was started: whatever somebody said of an earlier start is no answer about this one."""
    settled = settle(standing, {use_id})
    return replace(settled, started=standing.started | {use_id}, starts={**standing.starts, use_id: start})


def told_to_ask(standing: PendingTools, interrupts: Sequence[Interrupt]) -> PendingTools:
    """These were asked. Asked again, a question has no answer any more."""
    questions = {one.id: one for one in (*standing.questions, *interrupts)}
    again = {one.id for one in interrupts}
    responses = {key: value for key, value in standing.responses.items() if key not in again}
    return replace(standing, questions=tuple(questions.values()), responses=responses)


def stopped(
    standing: PendingTools, results: Sequence[ToolResult], interrupts: Sequence[Interrupt], parked: Mapping[str, Start]
) -> PendingTools:
    """The step waits for a person: some tools have ended, and the parked ones run again when they have their answer."""
    finished = {**standing.finished, **{result["toolUseId"]: result for result in results}}
    started = frozenset(standing.started - finished.keys() - parked.keys())
    starts = {use_id: start for use_id, start in {**standing.starts, **parked}.items() if use_id not in finished}
    settled = settle(standing, standing.started - started)
    return told_to_ask(replace(settled, started=started, finished=finished, starts=starts), interrupts)


def settle(standing: PendingTools, uses: Collection[str]) -> PendingTools:
    gone = {outcome_id(use_id) for use_id in uses}
    return replace(
        standing,
        questions=tuple(one for one in standing.questions if unmarked(one.id) not in gone),
        responses={key: value for key, value in standing.responses.items() if unmarked(key) not in gone},
    )


class Live:
    """A step that is interrupted again and again, in a journal and as it was done."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.driver = asked()
        self.standing = PendingTools(last=self.driver.fold.last_message)

    def crash(self) -> None:
        """Some tools start, a few end, and then nobody knows more."""
        for use_id in self.rng.sample(self.open(), self.rng.randint(0, len(self.open()))):
            start = self.start(use_id)
            self.standing = begun(self.standing, use_id, start)
            if self.rng.random() < 0.3:
                result = result_of(use_id, start.attempt)
                self.driver.append(ToolFinished(at=1.0, tool_use_id=use_id, result=result))
                self.standing = self.standing.ended({use_id: result})

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
        new = self.standing.not_asked([interrupt_for(use, self.standing.outcome_id(use["toolUseId"])) for use in uses])
        if new:
            self.driver.append(Interrupted(at=1.0, interrupts=new))
            self.standing = told_to_ask(self.standing, new)

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
        self.standing = stopped(self.standing, results, interrupts, parked)

    def check(self) -> None:
        assert pending_tools_of(self.driver.fold) == self.standing
        assert pending_tools_of(restore(self.driver.rows).fold.image()) == self.standing
        low = self.driver.rows[-1].low
        assert pending_tools_of(restore(self.driver.rows[low - 1 :]).fold) == self.standing


def test_what_was_done_is_what_the_journal_says(rng: random.Random) -> None:
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
        assert pending_tools_of(driver.fold) == PendingTools(last=fold.last_message)
        driver.append(*standing)
        live.check()


def test_the_message_that_follows_settles_everything(rng: random.Random) -> None:
    live = Live(rng)
    for _ in range(5):
        live.park()
    live.driver.do_results(1)
    assert pending_tools_of(live.driver.fold) == PendingTools(last=live.driver.fold.last_message)
