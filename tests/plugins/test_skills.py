"""Skills: files that are read or refused, and agents that use what they say."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory import Agent, AgentSkills, ScriptedModel, Skill, SQLiteSessionManager
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import tool_results
from repertory.errors import Invalid
from tests.app.orchestration.recorder import use

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

real_time = pytest.mark.real_time
PDF = Skill(name="pdf", description="Reads <PDF> files.", instructions="Use pdftotext.")


def write_skill(folder: Path, name: str, head: str = "", body: str = "Do it well.") -> Path:
    place = folder / name
    place.mkdir(parents=True)
    (place / "SKILL.md").write_text(f"---\nname: {name}\ndescription: About {name}.\n{head}---\n{body}\n")
    return place


def agent_with(plugin: AgentSkills, *replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(list(replies)), plugins=[plugin], callback_handler=None, **options)


def prompts(agent: Agent) -> list[Any]:
    assert isinstance(agent.model, ScriptedModel)
    return [call.system_prompt for call in agent.model.calls]


def answers(agent: Agent) -> list[str]:
    found = [result for message in agent.messages for result in tool_results(message)]
    return [str(result["content"][0].get("text")) for result in found]


# Reading.


def test_a_skill_is_read_from_its_folder_with_all_that_its_head_says(tmp_path: Path) -> None:
    head = "license: MIT\ncompatibility: Needs git\nallowed-tools: shell file_editor\nmetadata:\n  version: 1.2\n"
    read = Skill.from_file(write_skill(tmp_path, "releases", head))
    assert (read.name, read.description, read.instructions) == ("releases", "About releases.", "Do it well.")
    assert (read.license, read.compatibility, read.allowed_tools) == ("MIT", "Needs git", ["shell", "file_editor"])
    assert (read.metadata, read.path) == ({"version": 1.2}, tmp_path / "releases")
    assert Skill.from_file(tmp_path / "releases" / "SKILL.md") == read


BOMB = "\n".join(
    [
        "---",
        "name: a",
        "x0: &x0 [lol, lol]",
        *(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]" for n in range(1, 9)),
        "license: *x8",
        "description: b",
        "---",
    ]
)
"""A few hundred characters that stand for hundreds of millions."""


def test_a_file_of_any_size_is_no_skill(tmp_path: Path) -> None:
    (tmp_path / "SKILL.md").write_text("---\nname: a\n")
    os.truncate(tmp_path / "SKILL.md", 1 << 40)  # takes no room on the disk
    with pytest.raises(Invalid, match="too large"):
        Skill.from_file(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("# Only text", "must start with ---"),
        ("---\nname: a\n", "missing closing ---"),
        ("---\ndescription: b\n---\n", "'name' field"),
        ("---\nname: a\n---\n", "'description' field"),
        ("---\nname: [a\ndescription: {\n---\n", "malformed YAML frontmatter"),
        (f"---\nname: a\ndescription: b\nmetadata: {'[' * 9_000}\n---\n", "malformed YAML frontmatter"),
        ("---\nname: a\ndescription: b\nmetadata: 2024-99-99\n---\n", "malformed YAML frontmatter"),
        (f"---\nname: a\ndescription: b\nmetadata: {'1' * 9_000}\n---\n", "malformed YAML frontmatter"),
        ("---\nname: a\ndescription: b\nmetadata: !!bool foo\n---\n", "malformed YAML frontmatter"),
        ("---\nname: a\ndescription: b\nmetadata: !!timestamp foo\n---\n", "malformed YAML frontmatter"),
        ("---\nname: a\ndescription: b\nmetadata: !!int ''\n---\n", "malformed YAML frontmatter"),
        ("---\nname: a\ndescription: b\nmetadata: !x [a]\n---\n", "malformed YAML frontmatter"),
        (f"---\nname: a\ndescription: b\nmetadata:\n- {'1:' * 400}1.5\n---\n", "malformed YAML frontmatter"),
        ('---\nname: a\ndescription: "\\ud800"\n---\n', "malformed YAML frontmatter"),
        (f"---\nname: a\ndescription: {'b' * 20_000}\n---\n", "too long"),
        (BOMB, "malformed YAML frontmatter"),
    ],
)
def test_a_text_that_is_no_skill_is_refused_with_the_reason(content: str, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        Skill.from_content(content)


def test_a_value_with_colons_and_no_quotes_is_read_as_its_author_meant_it() -> None:
    read = Skill.from_content('---\nname: a\ndescription: Use when: the "user" asks\n---\nGo.')
    assert read.description == 'Use when: the "user" asks'


PIECES = [
    *(
        "!!",
        "! ",
        "&a ",
        "*a",
        "? ",
        ": ",
        "- ",
        "{",
        "}",
        "[",
        "]",
        ",",
        "|\n",
        ">",
        "\n",
        "\n  ",
        "'",
        '"',
        "\\",
        "#",
        "%",
    ),
    *(
        "\\ud800",
        "\\x00",
        "\\U00110000",
        "%TAG ! x\n",
        "---",
        "...",
        "<<",
        "=",
        "~",
        "true",
        "1",
        "_",
        "0x",
        "09",
        ".5",
        "1e9",
    ),
    *(
        ".inf",
        ".nan",
        "1:2",
        "1:" * 200,
        "2001-01-01",
        "2001-13-01T99:99:99Z",
        "+99:99",
        "é",
        "\ufeff",
        "\x85",
        "\t",
        "@",
    ),
    *("bool foo", "timestamp", "binary", "set", "omap", "int", "float", "metadata", "license", "allowed-tools"),
]


@given(st.text() | st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_is_a_skill_or_refused(content: str) -> None:
    named = f"---\nname: a\ndescription: b\nmetadata: {content}\n---\nbody"
    for text in (content, f"---\n{content}\n---\nbody", named):
        with suppress(Invalid):
            assert Skill.from_content(text).name


@pytest.mark.parametrize("name", ["Loud", "-a", "a-", "a--b", "a_b", "a" * 65])
def test_a_name_against_the_rules_is_logged_and_when_strict_refused(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    content = f"---\nname: {name}\ndescription: b\n---\n"
    with caplog.at_level(logging.WARNING):
        assert Skill.from_content(content).name == name
    assert name in caplog.text
    with pytest.raises(Invalid, match="name"):
        Skill.from_content(content, strict=True)


def test_one_broken_skill_keeps_no_other_from_being_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_skill(tmp_path, "good")
    write_skill(tmp_path, "bad", head="description: [\n")
    write_skill(tmp_path, "worse", head="description: d\nmetadata: !!bool foo\n")
    (tmp_path / "no-skill").mkdir()
    with caplog.at_level(logging.WARNING):
        assert [skill.name for skill in Skill.from_directory(tmp_path)] == ["good"]
        read = AgentSkills([tmp_path, tmp_path / "missing", PDF]).get_available_skills()
    assert [skill.name for skill in read] == ["good", "pdf"]
    assert "bad" in caplog.text
    assert "missing" in caplog.text


@pytest.mark.parametrize("url", ["http://example.com/SKILL.md", "file:///etc/passwd", "./here"])
def test_only_https_addresses_are_fetched(url: str) -> None:
    with pytest.raises(Invalid, match="HTTPS"):
        Skill.from_url(url)


def test_without_pyyaml_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ImportError, match=r"repertory\[skills\]"):
        AgentSkills(write_skill(tmp_path, "a"))
    assert AgentSkills(PDF).get_available_skills() == [PDF]


# In an agent.


@pytest.mark.anyio
async def test_the_model_is_told_of_the_skills_once_however_often_it_is_called() -> None:
    agent = agent_with(AgentSkills([PDF]), "a", "b", system_prompt="Be brief.")
    await agent.invoke_async("1")
    await agent.invoke_async("2")
    told = (
        "Be brief.\n\n<available_skills>\n<skill>\n<name>pdf</name>\n"
        "<description>Reads &lt;PDF&gt; files.</description>\n</skill>\n</available_skills>"
    )
    assert prompts(agent) == [told, told]
    copy = agent.fresh_copy()
    await agent_answer(copy, "c")
    assert prompts(copy) == [told]


async def agent_answer(agent: Agent, reply: str) -> None:
    agent.model = ScriptedModel([reply])
    await agent.invoke_async("?")


@pytest.mark.anyio
async def test_blocks_of_a_system_prompt_stay_before_the_list_of_skills() -> None:
    prompt: list[Any] = [{"text": "Long."}, {"cachePoint": {"type": "default"}}]
    agent = agent_with(AgentSkills(PDF), "a", "b", system_prompt=prompt)
    await agent.invoke_async("1")
    await agent.invoke_async("2")
    blocks = agent.system_prompt_content or []
    assert blocks[:2] == prompt
    assert len(blocks) == 3


@pytest.mark.anyio
async def test_other_skills_take_the_place_of_the_list_at_the_next_call() -> None:
    plugin = AgentSkills(PDF)
    agent = agent_with(plugin, "a", "b")
    await agent.invoke_async("1")
    plugin.set_available_skills([])
    await agent.invoke_async("2")
    assert prompts(agent)[1] == "<available_skills>\nNo skills are currently available.\n</available_skills>"


@real_time
@pytest.mark.anyio
async def test_the_tool_gives_instructions_and_lists_the_files_of_the_skill(tmp_path: Path) -> None:
    place = write_skill(tmp_path, "maps", "allowed-tools: [shell]\n")
    for file in ("scripts/a.py", "scripts/deep/er/b.py", "scripts/deep/er/too/far.py", "assets/c.svg", "other/d.md"):
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).touch()
    (place / "references").symlink_to("/etc")
    agent = agent_with(AgentSkills(tmp_path), use("skills", skill_name="maps"), "done")
    await agent.invoke_async("go")
    assert answers(agent) == [
        f"Do it well.\n\n---\nAllowed tools: shell\nLocation: {place / 'SKILL.md'}\n\nAvailable resources:\n"
        "  scripts/a.py\n  scripts/deep/er/b.py\n  assets/c.svg"
    ]


@pytest.mark.anyio
async def test_an_unknown_skill_is_answered_with_the_names_that_there_are() -> None:
    agent = agent_with(AgentSkills(PDF), use("skills", skill_name="xls"), "done")
    await agent.invoke_async("go")
    assert answers(agent) == ["Skill 'xls' not found. Available skills: pdf"]


@real_time
@pytest.mark.anyio
async def test_which_skills_were_asked_for_outlives_a_restart(tmp_path: Path) -> None:
    xls = Skill(name="xls", description="Sheets.")
    plugin = AgentSkills([PDF, xls])
    calls = [use("skills", skill_name=name) for name in ("pdf", "xls", "pdf")]
    agent = agent_with(plugin, *calls, "done", session_manager=SQLiteSessionManager("s", path=tmp_path / "a.db"))
    await agent.invoke_async("go")
    later = agent_with(AgentSkills(PDF), session_manager=SQLiteSessionManager("s", path=tmp_path / "a.db"))
    await later.ready()
    assert plugin.get_activated_skills(later) == ["xls", "pdf"]


@real_time
@pytest.mark.anyio
async def test_inside_an_event_loop_files_are_read_before_the_first_call(tmp_path: Path) -> None:
    write_skill(tmp_path, "maps")
    agent = agent_with(AgentSkills(tmp_path), "done")
    await agent.invoke_async("go")
    assert "<name>maps</name>" in prompts(agent)[0]
