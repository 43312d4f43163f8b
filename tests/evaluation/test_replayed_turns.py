"""Evaluation by replay: variants, recorded tools, scorers, results, the page, and going on after a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    Evaluation,
    InMemoryStorage,
    JournalSessions,
    ReplayProgress,
    ScoredAnswer,
    ScriptedModel,
    Sessions,
    TokenPrice,
    Variant,
    replay,
    tool,
)
from repertory.app.sessions.sessions import PlacedSession, SessionLocation, SQLiteSessions
from repertory.console.main import main
from repertory.errors import Corrupt, Invalid, ModelFailed, NotFound
from tests.evaluation.replaying_child import PROMPTS, run
from tests.operations.operated_places import LOCAL, place_of

pytestmark = pytest.mark.anyio

HOSTILE = '</pre><script>document.title="owned"</script><img src=x onerror="document.title=1">\x00\u202e'
ran: list[str] = []


@tool(effects=True)
def price(item: str) -> float:
    """Look up what an item costs."""
    ran.append(item)
    return {"loaf": 4.2, "bun": 0.9}[item]


def asks(item: str) -> dict[str, Any]:
    return {"toolUse": {"name": "price", "input": {"item": item}}}


async def recorded(place: SessionLocation, *replies: Any, prompts: tuple[str, ...] = ("loaf?", "bun?", "bye")) -> None:
    """A session `marta` with these turns."""
    model = ScriptedModel(list(replies) or [asks("loaf"), "4.20", asks("bun"), "0.90", "Good bye."])
    agent = Agent(model, tools=[price], session_manager=PlacedSession("marta", place), callback_handler=None)
    async with agent:
        for prompt in prompts:
            await agent.invoke_async(prompt)
    ran.clear()


def in_memory() -> SessionLocation:
    return JournalSessions(InMemoryStorage())


async def test_a_variant_answers_every_turn_from_what_was_said_before_it() -> None:
    place = in_memory()
    await recorded(place)
    before = await Sessions(place).show("marta")
    model = ScriptedModel([asks("loaf"), "4.20", "No tool.", "Bye."])
    found = await replay(place, "marta", variant=Variant(name="new", model=model), concurrency=1)
    assert [row.turn for row in found.rows] == [1, 2, 3]
    assert [row.same for row in found.rows] == [True, False, False]
    assert [row.replayed.text for row in found.rows if row.replayed] == ["4.20", "No tool.", "Bye."]
    assert [len(call.messages) for call in model.calls] == [1, 3, 5, 9], "the recorded turns, not the replayed ones"
    assert ran == []
    assert await Sessions(place).show("marta") == before
    assert [each.session_id for each in await Sessions(place).list()] == ["marta"]


async def test_several_variants_are_compared_with_prompts_of_their_own() -> None:
    place = in_memory()
    await recorded(place, "Hello!", prompts=("hi",))
    models = ScriptedModel(["A"]), ScriptedModel(["B"])
    variants = [Variant(name=f"v{at}", model=model, system_prompt=f"Prompt {at}.") for at, model in enumerate(models)]
    found = await replay(Sessions(place), "marta", variant=variants)
    assert [(row.variant, row.replayed and row.replayed.text) for row in found.rows] == [("v0", "A"), ("v1", "B")]
    assert [model.calls[0].system_prompt for model in models] == ["Prompt 0.", "Prompt 1."]


@pytest.mark.parametrize(
    ("mode", "runs", "error"), [("recorded", [], False), ("refuse", [], True), ("live", ["bun"], False)]
)
async def test_a_tool_runs_only_live_and_only_for_what_is_not_recorded(mode: Any, runs: list[str], error: bool) -> None:
    place = in_memory()
    await recorded(place, asks("loaf"), "4.20", prompts=("loaf?",))
    model = ScriptedModel([asks("loaf"), asks("bun"), "Done."])
    variant = Variant(name="new", model=model, tools=[price])
    (row,) = (await replay(place, "marta", variant=variant, tools=mode)).rows
    assert ran == runs
    assert row.unmatched == ["price"]
    assert (row.error is not None) is error
    results = [block["toolResult"] for block in model.calls[-1].messages[-1]["content"] if "toolResult" in block]
    assert results[0]["status"] == ("success" if mode == "live" else "error")
    first = model.calls[1].messages[-1]["content"][0]
    assert "4.2" in json.dumps(first), "a recorded call has its recorded result in every mode"


async def test_a_tool_that_was_called_twice_answers_in_the_recorded_order() -> None:
    place = in_memory()
    answers = iter([{"text": "first"}, {"text": "second"}])

    @tool(name="price")
    def counting(item: str) -> dict[str, Any]:
        """Count."""
        return {"status": "success", "content": [next(answers)]}

    model = ScriptedModel([asks("x"), asks("x"), "Done."])
    async with Agent(
        model, tools=[counting], session_manager=PlacedSession("marta", place), callback_handler=None
    ) as agent:
        await agent.invoke_async("go")
    again = ScriptedModel([asks("x"), asks("x"), asks("x"), "Done."])
    await replay(place, "marta", variant=Variant(name="new", model=again))
    said = [json.dumps(call.messages[-1]["content"]) for call in again.calls[1:]]
    assert ["first" in said[0], "second" in said[1], "second" in said[2]] == [True, True, True]


async def test_scorers_score_and_their_errors_stop_nothing() -> None:
    place = in_memory()
    await recorded(place)

    def exact(answer: ScoredAnswer) -> bool:
        return answer.recorded is not None and answer.recorded.text == answer.replayed.text

    async def judged(answer: ScoredAnswer) -> float:
        await anyio.sleep(0.1)
        return 0.5

    def broken(answer: ScoredAnswer) -> int:
        raise ZeroDivisionError("no score")

    def odd(answer: ScoredAnswer) -> Any:
        return object()

    model = ScriptedModel(["4.20", "x", "Good bye."])
    found = await replay(
        place, "marta", variant=Variant(name="new", model=model), scorers=[exact, judged, broken, odd], concurrency=1
    )
    assert [row.scores for row in found.rows] == [{"exact": same, "judged": 0.5} for same in (True, False, True)]
    assert found.rows[0].score_errors["broken"] == "ZeroDivisionError: no score"
    assert found.rows[0].score_errors["odd"].startswith("Invalid: ")
    assert found.summaries[0].scores == {"exact": pytest.approx(2 / 3), "judged": 0.5}


async def test_an_error_of_the_model_is_a_row_and_the_others_go_on() -> None:
    place = in_memory()
    await recorded(place, "1", "2", "3")
    model = ScriptedModel(["one", ModelFailed("no power"), "three"])
    found = await replay(place, "marta", variant=Variant(name="new", model=model), concurrency=1)
    assert [row.error for row in found.rows] == [None, "ModelFailed: no power", None]
    assert found.summaries[0].errors == 1


async def test_costs_are_by_the_table_of_prices() -> None:
    place = in_memory()
    await recorded(place, "Hello.", prompts=("hi",))
    prices = {"recorded": TokenPrice(input=1e6, output=0), "new": TokenPrice(input=0, output=2e6)}
    model = ScriptedModel(["Hello again."])
    (row,) = (await replay(place, "marta", variant=Variant(name="new", model=model), prices=prices)).rows
    assert row.recorded is not None
    assert row.replayed is not None
    assert row.recorded.cost == row.recorded.input_tokens
    assert row.replayed.cost == 2 * (row.replayed.output_tokens or 0)


async def test_turns_are_chosen_by_label_number_and_count() -> None:
    place = in_memory()
    await recorded(place, "1", "2", "3")
    await Sessions(place).mark("marta", "begun", at=2)

    async def turns(**chosen: Any) -> list[int]:
        variant = Variant(name="new", model=ScriptedModel("x", loop=True))
        return [row.turn for row in (await replay(place, "marta", variant=variant, **chosen)).rows]

    assert await turns(at=["begun"]) == [2]
    assert await turns(at=[1, 5]) == [1, 3]
    assert await turns(last=2) == [2, 3]
    with pytest.raises(NotFound, match="no snapshot has this label"):
        await turns(at=["never"])
    with pytest.raises(Invalid, match="no turn of the conversation begins after this position"):
        await turns(at=[6])
    with pytest.raises(Invalid):
        await turns(last=0)


async def test_what_a_rewind_left_behind_is_not_replayed() -> None:
    place = in_memory()
    await recorded(place, "1", "2", "3")
    await Sessions(place).rewind("marta", 2)
    found = await replay(place, "marta", variant=Variant(name="new", model=ScriptedModel("x", loop=True)))
    assert [row.turn for row in found.rows] == [1]


async def test_bad_arguments_are_refused_before_any_model_call() -> None:
    place = in_memory()
    await recorded(place, "Hello.", prompts=("hi",))
    model = ScriptedModel("x", loop=True)
    good = Variant(name="new", model=model)
    for arguments in ({"variant": []}, {"variant": [good, good]}, {"variant": Variant(name="recorded", model=model)}):
        with pytest.raises(Invalid):
            await replay(place, "marta", **arguments)
    with pytest.raises(Invalid):
        await replay(place, "marta", variant=good, concurrency=0)
    with pytest.raises(Invalid):
        await replay(place, "marta", variant=good, tools="never")  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        await replay(place, "nobody", variant=good)
    assert model.calls == []


async def test_at_most_as_many_turns_run_as_allowed() -> None:
    place = in_memory()
    await recorded(place, *"123456", prompts=tuple("abcdef"))
    running = most = 0

    async def slow(answer: ScoredAnswer) -> bool:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(1)
        running -= 1
        return True

    variant = Variant(name="new", model=ScriptedModel("x", loop=True))
    await replay(place, "marta", variant=variant, scorers=[slow], concurrency=3)
    assert most == 3


@pytest.mark.real_time
@pytest.mark.parametrize("kind", LOCAL)
async def test_every_place_is_replayed_and_left_as_it_was(kind: str, tmp_path: Path) -> None:
    place = place_of(kind, tmp_path)
    await recorded(place)
    before = await Sessions(place).show("marta")
    model = ScriptedModel([asks("loaf"), "4.20", asks("bun"), "0.90", "Good bye."])
    found = await replay(place, "marta", variant=Variant(name="same", model=model), concurrency=1)
    assert [row.same for row in found.rows] == [True, True, True]
    assert await Sessions(place).show("marta") == before


@pytest.mark.real_time
async def test_results_are_read_back_and_not_made_again(tmp_path: Path) -> None:
    place, out = in_memory(), tmp_path / "results.jsonl"
    await recorded(place, "1", "2", "3")
    shown: list[ReplayProgress] = []

    async def again(**more: Any) -> Evaluation:
        variant = Variant(name="new", model=ScriptedModel(["x", "y", "z"]), system_prompt=more.pop("prompt", None))
        return await replay(place, "marta", variant=variant, out=out, concurrency=1, **more)

    first = await again(on_progress=shown.append)
    assert [(each.done, each.of) for each in shown] == [(1, 3), (2, 3), (3, 3)]
    lines = out.read_bytes().splitlines()
    assert [json.loads(line)["replayed"]["text"] for line in lines] == ["x", "y", "z"]
    out.write_bytes(b"\n".join(lines[:2]) + b"\n" + lines[2][:40])  # as a kill would leave it
    second = await again()
    assert second.resumed == 2
    assert [row.replayed and row.replayed.text for row in second.rows] == ["x", "y", "z"], "from the stored answer"
    assert second.rows[:2] == first.rows[:2]
    with pytest.raises(Invalid, match="another variant of this name"):
        await again(prompt="Be brief.")
    out.write_bytes(b"not json\n")
    with pytest.raises(Corrupt, match="not a line of replay results"):
        await again()


@pytest.mark.real_time
async def test_rows_with_an_error_are_made_again_when_asked(tmp_path: Path) -> None:
    place, out = in_memory(), tmp_path / "results.jsonl"
    await recorded(place, "1", prompts=("a",))
    failing, working = ScriptedModel([RuntimeError("down")]), ScriptedModel(["up"])
    for model, retry, text in ((failing, False, None), (working, False, None), (working, True, "up")):
        variant = Variant(name="new", model=model)
        (row,) = (await replay(place, "marta", variant=variant, out=out, retry_errors=retry)).rows
        assert row.error is None or not text
        assert (None if row.replayed is None else row.replayed.text) == text


def killed(folder: Path, *mode: str) -> int:
    child = subprocess.run(
        [sys.executable, "-m", "tests.evaluation.replaying_child", str(folder), *mode], check=False, timeout=60
    )
    return child.returncode


@pytest.mark.real_time
@pytest.mark.parametrize("mode", [("ANSWER", "two"), ("ROW", "3")])
async def test_a_replay_that_was_killed_goes_on_without_a_second_call(mode: tuple[str, str], tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "shop.db")
    await recorded(place, *"1234", prompts=PROMPTS)
    assert await anyio.to_thread.run_sync(killed, tmp_path, *mode) == -signal.SIGKILL
    kept = (tmp_path / "results.jsonl").read_bytes().splitlines()
    assert len(kept) == (1 if mode[0] == "ANSWER" else 3)
    assert await anyio.to_thread.run_sync(killed, tmp_path, "END") == 0
    found = await run(tmp_path)  # Everything is there: no model is asked.
    assert (tmp_path / "results.jsonl").read_bytes().splitlines()[: len(kept)] == kept
    assert [row.error for row in found.rows] == [None] * len(PROMPTS)
    assert [row.replayed and row.replayed.text for row in found.rows] == [prompt.upper() for prompt in PROMPTS]
    assert [row.scores["length"] for row in found.rows] == [3, 3, 5, 4]
    assert found.resumed == len(PROMPTS)
    calls = Counter((tmp_path / "calls.txt").read_text().splitlines())
    twice = {"two answer"} if mode[0] == "ANSWER" else set[str]()  # That call was cut off: it had no answer yet.
    assert {call for call, times in calls.items() if times > 1} == twice
    assert len(calls) == 2 * len(PROMPTS)
    assert len((tmp_path / "results.jsonl").read_bytes().splitlines()) == len(PROMPTS)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[tag] += 1
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name in ("src", "srcdoc")]


@pytest.mark.real_time
async def test_the_page_shows_hostile_contents_as_text(tmp_path: Path) -> None:
    place = in_memory()
    await recorded(place, HOSTILE, prompts=(HOSTILE,))

    def judge(answer: ScoredAnswer) -> str:
        return HOSTILE

    model = ScriptedModel([{"toolUse": {"name": HOSTILE[:20], "input": {HOSTILE: HOSTILE}}}, HOSTILE])
    variant = Variant(name="new", model=model)
    found = await replay(place, "marta", variant=variant, scorers=[judge])
    await found.write_page(tmp_path / "page.html")
    tags = Tags()
    tags.feed((tmp_path / "page.html").read_text())
    assert tags.found["script"] == 1
    assert tags.found["img"] == 0
    assert tags.handlers == []
    assert "\x00" not in found.html()
    assert "\u202e" not in found.html()


@pytest.mark.real_time
def test_the_command_replays_shows_progress_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at, out, page = tmp_path / "shop.db", tmp_path / "r.jsonl", tmp_path / "page.html"
    anyio.run(recorded, SQLiteSessions(at), "1", "2", "3")
    prices = tmp_path / "prices.json"
    prices.write_text('{"recorded": {"input": 3, "output": 15}}')
    command = ["replay", "marta", "--at", str(at), "--out", str(out), "--prices", str(prices), "--page", str(page)]
    variants = ["--with", "model=offline", "--with", "model=offline", "prompt=Be brief.", "name=brief"]
    assert main([*command, *variants, "--last", "2"]) == 0
    told = capsys.readouterr()
    assert len(told.err.splitlines()) == 4
    assert "[4/4] turn " in told.err
    assert [line.split()[0] for line in told.out.splitlines()] == ["VARIANT", "offline", "brief", "Results:"]
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert main([*command, *variants, "--json"]) == 0
    told = capsys.readouterr()
    assert len(told.err.splitlines()) == 2, "the other rows were there"
    assert [each["turns"] for each in json.loads(told.out)] == [3, 3]
    assert main(["replay", "marta", "--at", str(at), "--with", "size=9", "--out", str(out)]) == 2
    assert main(["replay", "nobody", "--at", str(at), "--with", "model=offline", "--out", str(out)]) == 1
    assert main([*command, "--with", "model=offline", "--position", "label:never"]) == 1
    prices.write_text("[]")
    assert main([*command, "--with", "model=offline"]) == 2
