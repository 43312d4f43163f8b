"""`assistant`: what it makes of its arguments, what it leaves alone, and a conversation that outlives its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from repertory import (
    Agent,
    HumanInTheLoop,
    MCPClient,
    NullConversationManager,
    Runtime,
    ScriptedModel,
    SlidingWindowConversationManager,
    SQLiteSessionManager,
    SQLiteSessions,
    ToolSearch,
    assistant,
    assistant_spec,
    tool,
)
from repertory.errors import Invalid
from repertory.plugins.assistant import ASSISTANT_PROMPT, SEARCHED_FROM

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]
FILES = ["list_files", "search_files", "read_file", "edit_file", "write_file"]
READS = ["retrieve_offloaded_content"]


def uses(name: str, **given: Any) -> dict[str, Any]:
    return {"toolUse": {"name": name, "input": given}}


@tool
def price() -> str:
    """Tell a price."""
    return "3"


def many(number: int) -> list[Any]:
    def made(at: int) -> Any:
        @tool(name=f"tool_{at}", effects=False)
        def found(what: str) -> str:
            """Does one of many things.

            Args:
                what: What.
            """
            return what

        return found

    return [made(at) for at in range(number)]


def test_without_a_folder_it_has_no_files_and_stores_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = ScriptedModel("Done.")
    agent = assistant(model, callback_handler=None, instructions="You help with taxes.")
    assert isinstance(agent, Agent)
    assert agent.tool_names == READS
    assert agent("Go.").stop_reason == "end_turn"
    assert model.calls[0].system_prompt == f"{ASSISTANT_PROMPT}\n\nYou help with taxes."
    assert list(tmp_path.iterdir()) == []


async def test_with_a_folder_it_works_on_its_files_and_reads_its_guide(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Say please.")
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    model = ScriptedModel([uses("edit_file", path="a.txt", old="two", new="three"), "Done."])
    agent = assistant(model, folder=tmp_path, callback_handler=None)
    assert agent.tool_names == [*FILES, *READS]
    await agent.invoke_async("Go.")
    assert (tmp_path / "a.txt").read_text() == "one\nthree\n"
    prompt = str(model.calls[0].system_prompt)
    assert prompt.startswith(ASSISTANT_PROMPT)
    assert prompt.endswith("Say please.")
    assert sorted(os.listdir(tmp_path)) == ["AGENTS.md", "a.txt"]


async def test_its_shell_asks_a_person_before_each_command(tmp_path: Path) -> None:
    model = ScriptedModel([uses("shell", command="pwd; touch made"), "Done."])
    agent = assistant(model, folder=tmp_path, shell=True, callback_handler=None)
    asked = await agent.invoke_async("Go.")
    assert asked.stop_reason == "interrupt"
    assert not (tmp_path / "made").exists()
    done = await agent.invoke_async([asked.interrupts[0].respond("y")])
    assert done.stop_reason == "end_turn"
    assert (tmp_path / "made").exists()


async def test_nobody_is_asked_where_the_program_says_so(tmp_path: Path) -> None:
    model = ScriptedModel([uses("shell", command="touch made"), "Done."])
    agent = assistant(model, folder=tmp_path, shell=True, ask=(), callback_handler=None)
    assert (await agent.invoke_async("Go.")).stop_reason == "end_turn"
    assert (tmp_path / "made").exists()


async def test_a_star_among_names_asks_for_every_tool(tmp_path: Path) -> None:
    model = ScriptedModel([uses("price"), "Three."])
    agent = assistant(model, tools=[price], ask=["shell", "*"], callback_handler=None)
    assert [one.tool for one in (await agent.invoke_async("How much?")).interrupts] == ["price"]


def test_names_in_ask_that_a_plugin_or_a_server_may_bring_are_taken(tmp_path: Path) -> None:
    for more in ({"plugins": [ToolSearch()]}, {"tools": [price, MCPClient.stdio("true", name="shop")]}):
        given: dict[str, Any] = {"tools": [price], **more}
        assert assistant(ScriptedModel("Done."), ask=["prices"], callback_handler=None, **given).interventions


async def test_a_person_may_be_asked_for_any_tool(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")

    def asks_for(name: str, ask: Any) -> bool:
        model = ScriptedModel([uses(name, path="a.txt", text="x") if name == "write_file" else uses(name), "Done."])
        agent = assistant(model, folder=tmp_path, ask=ask, callback_handler=None)
        return agent("Go.").stop_reason == "interrupt"

    from anyio.to_thread import run_sync

    assert await run_sync(asks_for, "write_file", ["write_file"])
    assert not await run_sync(asks_for, "list_files", ["write_file"])
    assert await run_sync(asks_for, "list_files", "*")


async def test_a_memory_is_noted_and_shown_in_another_session(tmp_path: Path) -> None:
    noted = uses("add_memory", entries=["Ada drinks green tea."])
    first = assistant(
        ScriptedModel([noted, "Noted."]), folder=tmp_path, memory="ada", session="1", callback_handler=None
    )
    async with first:
        assert (await first.invoke_async("I drink green tea.")).stop_reason == "end_turn"
    model, other = ScriptedModel("Green."), ScriptedModel("I do not know.")
    async with assistant(model, folder=tmp_path, memory="ada", session="2", callback_handler=None) as agent:
        await agent.invoke_async("Which tea do I drink?")
    async with assistant(other, folder=tmp_path, memory="bob", session="3", callback_handler=None) as agent:
        await agent.invoke_async("Which tea do I drink?")
    assert "Ada drinks green tea." in str(model.calls[0].messages)
    assert "green tea" not in str(other.calls[0].messages)


async def test_a_session_goes_on_in_another_object(tmp_path: Path) -> None:
    for number in range(2):
        async with assistant(ScriptedModel("Yes."), folder=tmp_path, session="s", callback_handler=None) as agent:
            await agent.invoke_async(f"Question {number}")
            assert len(agent.messages) == 2 + 2 * number
    assert sorted(os.listdir(tmp_path)) == [".repertory"]


async def test_the_model_reaches_none_of_what_is_stored(tmp_path: Path) -> None:
    model = ScriptedModel([uses("read_file", path=".repertory/sessions.db"), uses("list_files", pattern="*"), "Done."])
    async with assistant(model, folder=tmp_path, session="s", callback_handler=None) as agent:
        await agent.invoke_async("Look.")
        results = [block["toolResult"] for each in agent.messages for block in each["content"] if "toolResult" in block]
    assert results[0]["status"] == "error"
    assert results[1]["content"] == [{"text": "No files."}]


def test_many_tools_are_searched_and_a_few_are_shown() -> None:
    def names(**options: Any) -> list[str]:
        model = ScriptedModel("Done.")
        assistant(model, callback_handler=None, **options)("Go.")
        return [spec["name"] for spec in model.calls[0].tool_specs]

    few, lots = many(SEARCHED_FROM - 1), many(SEARCHED_FROM)
    assert len(names(tools=few)) == len(few) + len(READS)
    assert sorted(names(tools=lots)) == sorted(["search_tools", *READS])
    assert "search_tools" not in names(tools=lots, tool_search=False)
    assert "search_tools" in names(tools=few, tool_search=True)


def test_arguments_of_an_agent_count_before_what_it_chose(tmp_path: Path) -> None:
    sliding, manager = SlidingWindowConversationManager(), SQLiteSessionManager("s", path=tmp_path / "own.db")
    agent = assistant(
        ScriptedModel("Done."),
        system_prompt="Mine alone.",
        conversation_manager=sliding,
        session_manager=manager,
        agent_id="other",
        callback_handler=None,
    )
    assert agent.system_prompt == "Mine alone."
    assert agent.conversation_manager is sliding
    assert agent.session_manager is manager
    assert agent.agent_id == "other"
    assert agent.tool_names == []
    plain = assistant(ScriptedModel("Done."), context_manager=False, callback_handler=None)
    assert isinstance(plain.conversation_manager, NullConversationManager)


def test_a_session_manager_and_a_policy_of_ones_own(tmp_path: Path) -> None:
    manager, person = SQLiteSessionManager("s", path=tmp_path / "own.db"), HumanInTheLoop()
    agent = assistant(
        ScriptedModel("Done."), folder=tmp_path, session=manager, shell=True, ask=(), interventions=[person],
        callback_handler=None,
    )  # fmt: skip
    assert agent.session_manager is manager
    assert agent.interventions == (person,)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"session": "s"}, "a session is stored below the folder"),
        ({"memory": True}, "a memory is stored below the folder"),
        ({"folder": "/nowhere/at/all"}, "the folder of an assistant is an existing one"),
        ({"ask": "shell"}, "ask is a list of names"),
        ({"shell": True, "interventions": [HumanInTheLoop()]}, "one HumanInTheLoop"),
        ({"folder": 3}, "folder of an assistant is a path"),
        ({"instructions": 3}, "instructions are a text"),
        ({"shell": "no"}, "shell is True or False"),
        ({"tool_search": "no"}, "tool_search is True, False or None"),
        ({"ask": 3}, "ask is a list of names"),
        ({"ask": [3]}, "ask has names of tools"),
        ({"ask": ["price_"], "tools": [price]}, 'did you mean "price"'),
    ],
    ids=[
        "session",
        "memory",
        "folder",
        "ask",
        "two policies",
        "a number as folder",
        "a number as instructions",
        "a text as shell",
        "a text as tool_search",
        "a number as ask",
        "a number in ask",
        "a typo in ask",
    ],
)
def test_what_lacks_its_argument_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        assistant(ScriptedModel("Done."), callback_handler=None, **options)


PROGRAM = """
    import os, signal, sys
    from pathlib import Path
    from repertory import ScriptedModel, assistant

    folder, dies = Path(sys.argv[1]), sys.argv[2] == "dies"

    class Model(ScriptedModel):
        async def stream(self, messages, *given, **options):
            done = sum("toolResult" in block for each in messages for block in each["content"])
            if done == 2 and dies:
                os.kill(os.getpid(), signal.SIGKILL)
            async for event in super().stream(messages, *given, **options):
                yield event

    def uses(name, **given):
        return {"toolUse": {"name": name, "input": given}}

    first = uses("edit_file", path="a.txt", old="one", new="one and a half")
    second = uses("write_file", path="b.txt", text="b")
    model = Model([first, second, "All is done."] if dies else ["All is done."])
    agent = assistant(model, folder=folder, session="s", callback_handler=None)
    print(agent("Edit both." if dies else None), len(model.calls))
"""


def test_a_killed_assistant_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")

    def run(how: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path), how]
        return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env=os.environ)

    assert run("dies").returncode == -signal.SIGKILL
    again = run("lives")
    assert again.stdout.split("\n")[0].endswith("All is done. 1"), again.stdout + again.stderr
    assert (tmp_path / "a.txt").read_text() == "one and a half\n"
    assert (tmp_path / "b.txt").read_text() == "b"


# Of a runtime.


async def test_a_runtime_has_assistants_with_their_files_their_guide_and_their_questions(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Prices are in euro.")
    steps = [uses("write_file", path="a.txt", text="rye"), "Written."]
    model = ScriptedModel([*steps, *steps])
    spec = assistant_spec("clerk", model, instructions="You keep lists.", folder=tmp_path, ask=["write_file"])
    async with Runtime() as runtime:
        for user in ("ann", "bob"):
            session = runtime.agent(spec).session(user)
            result = await session.invoke("Note rye.")
            assert [one.tool for one in result.interrupts] == ["write_file"]
            assert str(await session.invoke([one.respond("yes") for one in result.interrupts])).strip() == "Written."
    assert (tmp_path / "a.txt").read_text() == "rye"
    prompts = [str(call.system_prompt) for call in model.calls]
    assert all(prompt.startswith(f"{ASSISTANT_PROMPT}\n\nYou keep lists.") for prompt in prompts)
    assert [prompt.count("Prices are in euro.") for prompt in prompts] == [1, 1, 1, 1]
    assert [each["name"] for each in model.calls[0].tool_specs or ()] == [*FILES, *READS]


async def test_the_spec_of_an_assistant_takes_the_fields_of_specs_and_no_session(tmp_path: Path) -> None:
    spec = assistant_spec("clerk", ScriptedModel("Done."), limits={"turns": 3}, context_manager=False, busy="steer")
    assert (spec.limits, spec.context_manager, spec.busy, list(spec.tools)) == ({"turns": 3}, False, "steer", [])
    wrong: Any = {"session": "ann"}
    with pytest.raises(TypeError, match="session"):
        assistant_spec("clerk", **wrong)
    with pytest.raises(Invalid):
        assistant_spec("clerk", instructions=5)


async def test_a_session_of_an_assistant_goes_on_in_another_runtime(tmp_path: Path) -> None:
    for answer in ("One.", "Two."):
        model = ScriptedModel(answer)
        async with Runtime(sessions=SQLiteSessions(tmp_path / "s.db")) as runtime:
            await runtime.agent(assistant_spec("clerk", model)).session("ann").invoke("Go.")
    assert len(model.calls[0].messages) == 3
