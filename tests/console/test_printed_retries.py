"""Answers that are begun again or replaced, printed where nothing can be taken back: by the default callback handler,
and in a chat, with colours and without.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from repertory import Agent, AgentResult, Model, ModelRetryStrategy
from repertory.app.agent.printer import ASKED_AGAIN, REPLACED, PrintingCallbackHandler
from repertory.console.rich_terminal import RichTurn
from repertory.console.terminal import PlainTurn, Terminal
from repertory.errors import ModelStreamBroken, Throttled
from tests.app.agent.test_repeated_model_calls import AskedTwice, Breaks, TriedModel
from tests.plugins.guarded_model import GuardedModel, Verdict

pytestmark = pytest.mark.anyio
SOON = ModelRetryStrategy(transient_delay=0.5)
FORTY = Breaks("The answer ", "is forty", unsent=True)


def printing(model: Model, **settings: Any) -> Agent:
    return Agent(model, callback_handler=PrintingCallbackHandler(), **settings)


async def test_an_answer_that_is_begun_again_is_printed_on_a_new_line_below_a_mark(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = TriedModel(FORTY, ["The answer is ", "forty-two."])
    await printing(model, retry_strategy=SOON).invoke_async("What is it?")
    assert capsys.readouterr().out == f"The answer is forty\n{ASKED_AGAIN}\nThe answer is forty-two.\n"


async def test_an_answer_that_a_hook_has_begun_again_is_marked_too(capsys: pytest.CaptureFixture[str]) -> None:
    await printing(TriedModel(["Forty."], ["Forty-two."]), hooks=[AskedTwice()]).invoke_async("What is it?")
    assert capsys.readouterr().out == f"Forty.\n{ASKED_AGAIN}\nForty-two.\n"


async def test_reasoning_is_marked_and_a_model_that_has_said_nothing_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    await printing(TriedModel(Breaks(thinks="Hm", unsent=True), ["42"]), retry_strategy=SOON).invoke_async("go")
    assert capsys.readouterr().out == f"Hm\n{ASKED_AGAIN}\n42\n"
    await printing(TriedModel(Breaks(), ["42"]), retry_strategy=SOON).invoke_async("go")
    assert capsys.readouterr().out == "42\n"


async def test_a_message_that_was_replaced_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    await printing(GuardedModel(Verdict("my secret", assistant="[blocked]"))).invoke_async("go")
    assert capsys.readouterr().out == f"my secret\n{REPLACED}\n[blocked]\n"


def test_a_tool_use_that_is_void_is_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    handler = PrintingCallbackHandler()
    start = {"contentBlockStart": {"start": {"toolUse": {"toolUseId": "1", "name": "look"}}}}
    use = {"toolUse": {"toolUseId": "1", "name": "look", "input": {}}}
    for event in (
        {"event": start},
        {"model_retry": {"attempt": 1, "delay_s": 0.0, "error": None}},
        {"event": start},
        {"message": {"role": "assistant", "content": [use]}},
        {"event": start},
    ):
        handler(**event)
    assert capsys.readouterr().out == f"\nTool #1: look\n\n{ASKED_AGAIN}\n\nTool #1: look\n\nTool #2: look\n"


# Chats.


def data(text: str) -> dict[str, Any]:
    return {"data": text, "delta": {}}


def retry(error: Exception | None) -> dict[str, Any]:
    return {"model_retry": {"attempt": 1, "delay_s": 2.0, "error": error}}


def whole(text: str) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": [{"text": text}]}}


def plain(events: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    turn = PlainTurn(Terminal(io.StringIO(), out, io.StringIO()))
    for event in events:
        turn.show(event)
    turn.close()
    return out.getvalue()


def rich(events: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    turn = RichTurn(Console(file=out, width=100), live=False, shows_usage=False, closed=lambda: None)
    for event in events:
        turn.show(event)
    turn.close()
    return "\n".join(line.rstrip() for line in out.getvalue().split("\n"))


def test_a_chat_without_colours_marks_what_is_void() -> None:
    broken = retry(ModelStreamBroken("no"))
    assert plain([data("It is fo"), broken, data("It is 42."), whole("It is 42.")]) == (
        f"It is fo\n{ASKED_AGAIN}\nIt is 42.\n"
    )
    assert plain([broken, data("It is 42."), whole("It is 42.")]) == "It is 42.\n"
    assert plain([data("secret"), whole("[blocked]")]) == f"secret\n{REPLACED}\n[blocked]\n"


def test_a_chat_with_colours_marks_what_is_void() -> None:
    broken, again = retry(Throttled("no")), "(The model failed; it is asked again in 2.0 s."
    assert rich([data("It is fo"), broken, data("It is 42."), whole("It is 42.")]).split("\n") == [
        *("It is fo", f"{again} Its answer begins anew.)", "", "It is 42.", "")
    ]
    assert rich([broken, data("It is 42."), whole("It is 42.")]).split("\n") == [f"{again})", "", "It is 42.", ""]
    assert rich([data("Forty."), retry(None), data("42"), whole("42")]).split("\n") == [
        *("Forty.", ASKED_AGAIN, "", "42", "")
    ]
    assert rich([data("secret"), whole("[blocked]")]).split("\n") == ["secret", REPLACED, "", "[blocked]", ""]


PRINTERS: list[Callable[[Sequence[dict[str, Any]]], str]] = [plain, rich]
WORDS = st.sampled_from(["a", "ab", "ba", "a b", "\U0001f600a"])


@pytest.mark.parametrize("printed", PRINTERS)
@given(tries=st.lists(WORDS, max_size=3), text=WORDS, replaced=st.booleans(), places=st.lists(st.integers(0, 3)))
def test_below_the_last_mark_stands_the_message_alone(
    printed: Callable[[Sequence[dict[str, Any]]], str], tries: list[str], text: str, replaced: bool, places: list[int]
) -> None:
    bounds = sorted({0, len(text), *(min(place, len(text)) for place in places)})
    events = [event for each in tries for event in (data(each), retry(None))]
    events += [data(text[begin:end]) for begin, end in pairwise(bounds)]
    final = "[blocked]" if replaced else text
    lines = (
        printed([*events, whole(final), {"result": AgentResult(stop_reason="end_turn", message=None)}])
        .strip("\n")
        .split("\n")
    )
    marks = [number for number, line in enumerate(lines) if line in (ASKED_AGAIN, REPLACED)]
    assert len(marks) == len(tries) + replaced
    assert "\n".join(lines[marks[-1] + 1 if marks else 0 :]).strip("\n") == final
