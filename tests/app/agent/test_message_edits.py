"""`agent.messages` against a list: each edit does what it does to a list, or is refused and does nothing; and what was
edited is what is restored.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repertory import Agent, BeforeModelCallEvent, NullConversationManager, ScriptedModel, SQLiteSessionManager
from repertory.errors import Invalid, UnpairedTools

pytestmark = pytest.mark.real_time

_numbers = itertools.count()

TEXTS = st.sampled_from(["heron", "egret", "stork"])
MESSAGES = st.builds(
    lambda role, text: {"role": role, "content": [{"text": text}]}, st.sampled_from(["user", "assistant"]), TEXTS
)
PLACES = st.integers(-7, 7)
SLICES = st.builds(slice, st.none() | PLACES, st.none() | PLACES)
CHANGES = st.one_of(
    st.tuples(st.just("append"), MESSAGES),
    st.tuples(st.just("extend"), st.lists(MESSAGES, max_size=3)),
    st.tuples(st.just("+="), st.lists(MESSAGES, max_size=2)),
    st.tuples(st.just("insert"), PLACES, MESSAGES),
    st.tuples(st.just("pop"), PLACES),
    st.tuples(st.just("remove"), MESSAGES),
    st.tuples(st.just("clear")),
    st.tuples(st.just("reverse")),
    st.tuples(st.just("set"), PLACES, MESSAGES),
    st.tuples(st.just("set slice"), SLICES, st.lists(MESSAGES, max_size=3)),
    st.tuples(st.just("del"), PLACES),
    st.tuples(st.just("del slice"), SLICES),
    st.tuples(st.just("assign"), st.lists(MESSAGES, max_size=4)),
)
EDITS = st.one_of(CHANGES, CHANGES, CHANGES, st.tuples(st.just("talk")), st.tuples(st.just("reopen")))


def edited(messages: list[Any], edit: tuple[Any, ...]) -> None:
    """Do it to a list, or to what should be like one."""
    match edit:
        case ("append", message):
            messages.append(message)
        case ("extend", more):
            messages.extend(more)
        case ("+=", more):
            messages += more
        case ("insert", place, message):
            messages.insert(place, message)
        case ("pop", place):
            messages.pop(place)
        case ("remove", message):
            messages.remove(message)
        case ("clear",):
            messages.clear()
        case ("reverse",):
            messages.reverse()
        case ("set", place, message) | ("set slice", place, message):
            messages[place] = message
        case ("del", place) | ("del slice", place):
            del messages[place]
        case _:
            raise AssertionError(edit)


def plain(messages: list[Any]) -> list[Any]:
    return [{"role": each["role"], "content": each["content"]} for each in messages]


@settings(max_examples=100, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(EDITS, min_size=3, max_size=8), early=st.booleans())
def test_an_edit_does_what_it_does_to_a_list_or_nothing(
    tmp_path: Path, edits: list[tuple[Any, ...]], early: bool
) -> None:
    name = f"s{next(_numbers)}"

    def opened() -> Agent:
        manager = SQLiteSessionManager(name, path=tmp_path / "a.db")
        model = ScriptedModel(["noted"], loop=True)
        return Agent(
            model, session_manager=manager, conversation_manager=NullConversationManager(), callback_handler=None
        )

    agent = opened()
    said = 0
    if early:
        agent("hello")
        said += 1
    for edit in edits:
        if edit[0] == "talk":
            before = plain(agent.messages)
            agent(f"prompt {said}")
            said += 1
            assert plain(agent.messages)[: len(before)] == before
        elif edit[0] == "reopen":
            shown = plain(agent.messages)
            agent.shutdown()
            agent = opened()
            assert plain(agent.messages) == shown
        else:
            edit_both(agent, edit)
    shown = plain(agent.messages)
    history = anyio.run(agent.history)
    assert len([each for each in history if each["role"] == "user" and "prompt" in str(each)]) == said - early
    agent.shutdown()
    assert plain(opened().messages) == shown


@settings(max_examples=40, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bursts=st.lists(st.lists(CHANGES, min_size=2, max_size=4), min_size=1, max_size=3), early=st.booleans())
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_edits_that_wait_to_be_stored_together_are_what_the_next_agent_is_shown(
    tmp_path: Path, bursts: list[list[tuple[Any, ...]]], early: bool, backend: str
) -> None:
    name = f"s{next(_numbers)}"

    async def burst(edits: list[tuple[Any, ...]], *, talks: bool) -> list[Any]:
        """In a loop no edit waits for the store: all of them are stored when the agent is next used."""
        manager = SQLiteSessionManager(name, path=tmp_path / "a.db")
        model = ScriptedModel(["noted"], loop=True)
        async with Agent(
            model, session_manager=manager, conversation_manager=NullConversationManager(), callback_handler=None
        ) as agent:
            if talks:
                await agent.invoke_async("hello")
            before = plain(agent.messages)
            assert before == restored or talks
            for edit in edits:
                edit_both(agent, edit)
            shown = plain(agent.messages)
            await agent.ready()
            assert plain(agent.messages) == shown
            return shown

    restored: list[Any] = []
    for number, edits in enumerate(bursts):
        restored = anyio.run(lambda edits=edits, talks=early and not number: burst(edits, talks=talks), backend=backend)
    assert anyio.run(lambda: burst([], talks=False), backend=backend) == restored


def edit_both(agent: Agent, edit: tuple[Any, ...]) -> None:
    before = plain(agent.messages)
    expected: list[Any] = list(before)
    try:
        if edit[0] == "assign":
            expected = list(edit[1])
        else:
            edited(expected, edit)
    except (IndexError, ValueError) as error:
        with pytest.raises(type(error)):
            edited(agent.messages, edit)
        assert plain(agent.messages) == before
        return
    try:
        if edit[0] == "assign":
            agent.messages = edit[1]
        else:
            edited(agent.messages, edit)
    except (Invalid, UnpairedTools):
        assert plain(agent.messages) == before
    else:
        assert plain(agent.messages) == expected


def test_messages_put_in_front_one_after_the_other_all_stay(tmp_path: Path) -> None:
    def opened() -> Agent:
        manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
        return Agent(ScriptedModel(["noted"], loop=True), session_manager=manager, callback_handler=None)

    agent = opened()
    agent("hello")
    for text in ("third", "second", "first"):
        agent.messages.insert(0, {"role": "user", "content": [{"text": text}]})
    agent.messages.append({"role": "user", "content": [{"text": "last"}]})
    del agent.messages[1]
    shown = plain(agent.messages)
    assert [each["content"][0]["text"] for each in shown] == ["first", "third", "hello", "noted", "last"]
    agent.shutdown()
    agent = opened()
    assert plain(agent.messages) == shown
    agent("and now?")
    assert [each["content"][0]["text"] for each in plain(agent.messages)][-2:] == ["and now?", "noted"]


def test_a_hook_that_puts_a_message_in_front_in_each_turn_loses_none_of_them(tmp_path: Path) -> None:
    def opened() -> Agent:
        manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
        return Agent(ScriptedModel(["noted"], loop=True), session_manager=manager, callback_handler=None)

    agent = opened()
    notes = iter(["first note", "second note"])

    def note(event: BeforeModelCallEvent) -> None:
        event.agent.messages.insert(0, {"role": "user", "content": [{"text": next(notes)}]})

    agent.add_hook(note)
    agent("hello")
    agent("and now?")
    shown = plain(agent.messages)
    assert shown[0]["content"] == [{"text": "second note"}, {"text": "first note"}]
    assert [each["content"][0]["text"] for each in shown[1:]] == ["hello", "noted", "and now?", "noted"]
    agent.shutdown()
    assert plain(opened().messages) == shown
