"""`repertory chat` in a real pseudo-terminal, as a person sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.console.chat_commands import Ordered, Said, UnknownCommand, read_line
from repertory.console.rich_terminal import split_blocks
from tests.console.screens import SeenScreen, on_screen
from tests.source_tree import ROOT

COMMAND = [sys.executable, "-m", "repertory.console.main"]
SCRIPTED = """
import sys
from pathlib import Path
from repertory import ScriptedModel
from repertory.console.chat import ChatSettings, open_terminal, talk
import os

settings = ChatSettings()
model = ScriptedModel(eval(sys.argv[1]), delay_s=float(sys.argv[2]), chunk=7)
sys.exit(talk(settings, model, open_terminal(settings, os.environ), label="script"))
"""
OpenChat = Callable[..., AbstractContextManager[SeenScreen]]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody with a terminal and nothing else."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "PYTHONUTF8": "1",
    }


@pytest.fixture
def offline(environ: dict[str, str]) -> OpenChat:
    def chat(*options: str, **size: int) -> AbstractContextManager[SeenScreen]:
        return on_screen([*COMMAND, "chat", "--offline", *options], environ, **size)

    return chat


@pytest.fixture
def scripted(environ: dict[str, str]) -> OpenChat:
    def chat(replies: list[object], delay_s: float = 0.0, **size: int) -> AbstractContextManager[SeenScreen]:
        return on_screen([sys.executable, "-c", SCRIPTED, repr(replies), str(delay_s)], environ, **size)

    return chat


@pytest.mark.real_time
def test_a_chat_takes_turns_of_several_lines_and_commands_and_keeps_what_was_typed(
    offline: OpenChat, tmp_path: Path
) -> None:
    with offline(lines=60) as screen:
        screen.wait_for_prompt()
        screen.type("What is 6 * 7?\r")
        screen.wait_for_prompt(2)
        (tool,) = [line for line in screen.lines if "calculator(" in line]
        assert tool.startswith('✓ calculator(expression="6 * 7")  42  ')
        assert tool.endswith(" s")
        assert "[offline] The result is 42." in screen.text
        assert ", 2 model calls" in screen.text
        screen.paste("red\r\ngreen\nblue")
        screen.type("\x1b\ryellow\\\rblack\r")
        screen.wait_for_prompt(3)
        assert '"red green blue yellow black"' in screen.text
        screen.type("/histroy\r")
        screen.wait("There is no command /histroy. Did you mean /history?")
        screen.type("//histroy\r")
        screen.wait('I understood: "/histroy"')
        screen.type(" a secret\r")
        screen.wait('I understood: "a secret"')
        screen.wait_for_prompt(6)
        screen.type("\x04")
        assert screen.end() == 0
    history = tmp_path / ".repertory/chat_history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert "secret" not in history.read_text()
    with offline() as screen:
        screen.wait("10 messages")
        screen.type("\x1b[A\x1b[A\x1b[A")
        screen.wait("   | black")
        screen.type("\x03/exit\r")
        assert screen.end() == 0


@pytest.mark.real_time
def test_commands_show_change_and_save_the_conversation(offline: OpenChat, tmp_path: Path) -> None:
    with offline("--at", "some.db", "--files", "notes", lines=100) as screen:
        screen.wait_for_prompt()
        prompts = 1

        def say(line: str) -> str:
            nonlocal prompts
            before = len(screen.text.rstrip())
            screen.type(f"{line}\r")
            prompts += 1
            screen.wait_for_prompt(prompts)
            return screen.text[before:]

        assert "Nothing has been said" in say("/fork")
        assert "your dog is Rex" in say("My dog is called Rex.")
        assert "your dog is Ida" in say("My dog is called Ida.")
        assert "#3 user" in say("/history 2")
        assert "#1 user" not in say("/history 2")
        assert "session chat-2" in say("/fork")
        assert "4 messages" in say("/fork twin")
        assert "Back at #2; /rewind" in say("/rewind 2")
        assert "Your dog is Rex." in say("what is my dog?")
        assert "nowhere" in say("/rewind nowhere").partition("ends.")[2]
        assert "Your dog is Rex." in say("what is my dog?")
        assert "calculator: Calculate" in say("/tools")
        assert "Model: offline model" in say("/model")
        assert "From now on: OpenAI (some-model)" in say("/model openai:some-model")
        assert "From now on: offline" in say("/model offline")
        assert "not shown" in say("/usage off")
        assert "tokens in" not in say("hello")
        assert "messages written to talk.md" in say("/save talk.md")
        assert "File exists" in say("/save talk.md")
        assert "There is a session chat already" in say("/new chat")
        assert "session fresh, offline model" in say("/new fresh")
        assert "You have not told me" in say("what is my dog?")
        screen.type("/quit\r")
        assert screen.end() == 0
    written = (tmp_path / "talk.md").read_text()
    assert written.startswith("# twin\n\n## You\n\nMy dog is called Rex.\n\n## Agent\n\n[offline] Noted")
    assert (tmp_path / "talk.md").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / ".repertory").exists(), "nothing is kept elsewhere when the place was chosen"


@pytest.mark.real_time
def test_ctrl_c_stops_an_answer_then_clears_the_line_and_then_leaves(scripted: OpenChat) -> None:
    with scripted(["word " * 2000, "short"], 0.01) as screen:
        screen.wait_for_prompt()
        screen.type("go\r")
        screen.wait("word word")
        screen.type("typed ahead\x03")
        screen.wait("Stopped. Press Enter to continue it")
        screen.wait("you> ")
        screen.type("and now\r")
        screen.wait("short")
        screen.wait_for_prompt(3)
        assert "^C" not in screen.text
        screen.type("never mind")
        screen.wait("you> never mind")
        screen.type("\x03")
        screen.wait("Ctrl-C again leaves")
        screen.type("x")
        screen.wait(lambda text: "again leaves" not in text)
        screen.type("\x03\x03")
        assert screen.end() == 0


@pytest.mark.real_time
@pytest.mark.parametrize("busy", [False, True])
def test_a_signal_ends_the_chat_and_leaves_the_terminal_as_it_was(scripted: OpenChat, busy: bool) -> None:
    with scripted(["word " * 2000], 0.01) as screen:
        screen.wait_for_prompt()
        if busy:
            screen.type("go\r")
            screen.wait("word word")
        screen.child.kill(signal.SIGTERM)
        assert screen.end() == 128 + signal.SIGTERM
        assert "Traceback" not in screen.text


MARKDOWN = """# Bread

Rye is **dark** and _dense_.

- one
- two

```python
print("x" * 3)
```

| loaf | price |
|------|-------|
| 🍞 rye | 4.20 |
| 小麦 | 3.10 |

The end.
"""


@pytest.mark.real_time
def test_markdown_is_formatted_at_any_width_with_wide_letters_and_after_a_resize(scripted: OpenChat) -> None:
    with scripted([MARKDOWN, MARKDOWN], 0.002, lines=60) as screen:
        screen.wait_for_prompt()
        screen.type("bread\r")
        screen.wait_for_prompt(2)
        shown = screen.text
        assert "**" not in shown
        assert "```" not in shown
        assert [shown.count(word) for word in ("Bread", "The end.", "price", "• one", 'print("x" * 3)')] == [1] * 5
        rows = [line for line in screen.lines if "4.20" in line or "3.10" in line]
        assert len(rows) == 2
        assert {True} == {bold for _, bold, _ in screen.styles("dark")}
        screen.resize(24, 60)
        screen.type("bread\r")
        screen.wait(lambda text: text.count("The end.") == 2)
        screen.wait_for_prompt(3)
        assert max(map(len, screen.lines[-20:])) <= 24


@pytest.mark.real_time
def test_what_is_higher_than_the_screen_is_shown_once_and_whole(scripted: OpenChat) -> None:
    items = "".join(f"- item {number} of **many**\n" for number in range(60))
    code = "".join(f"x{number} = {number}\n" for number in range(50))
    thought = {"reasoningContent": {"reasoningText": {"text": "I wonder.\n\nI see."}}}
    with scripted([[thought, {"text": f"First.\n\n{items}\nThen.\n\n```python\n{code}```\n\nLast."}]], 0.001) as screen:
        screen.wait_for_prompt()
        screen.type("go\r")
        screen.wait_for_prompt(2)
        lines = [line.strip() for line in screen.lines]
        said = lines[lines.index("you> go") + 1 :]
        for number in range(60):
            assert said.count(f"• item {number} of many") == 1
        for number in range(50):
            assert said.count(f"x{number} = {number}") == 1
        paragraphs = "\n".join(said).split("\n\n")
        assert [paragraphs[at] for at in (0, 1, 2, 4)] == ["I wonder.", "I see.", "First.", "Then."]
        assert paragraphs[6].startswith("Last.\n")
        assert {True} == {italics for _, _, italics in screen.styles("I see")} or "I see" not in screen.lines[-24:]


@pytest.mark.real_time
def test_what_a_model_says_cannot_command_the_terminal(scripted: OpenChat) -> None:
    hostile = "red \x1b[31m, title \x1b]0;owned\x07, &#27;[2J and &#x9b;2J, `\x1b[1m`, [good](http://bad.example/\u202e)\n\nend"
    use = {"toolUse": {"name": "calculator", "input": {"expression": "\x1b[2J1+1"}}}
    with scripted([use, hostile]) as screen:
        screen.wait_for_prompt()
        screen.type("go\r")
        screen.wait_for_prompt(2)
        assert "\\x1b[31m" in screen.text
        assert "http://bad.example" in screen.text
        assert {color for color, _, _ in screen.styles("red")} == {"default"}
    assert b"\x1b]" not in screen.raw
    assert b"\x1b[2J" not in screen.raw
    assert b"\x07" not in screen.raw


@pytest.mark.real_time
def test_without_colours_wanted_there_are_none(environ: dict[str, str], offline: OpenChat) -> None:
    environ["NO_COLOR"] = "1"
    with offline() as screen:
        screen.wait_for_prompt()
        screen.type("What is 6 * 7?\r")
        screen.wait_for_prompt(2)
        assert {color for color, _, _ in screen.styles("calculator") | screen.styles("✓")} == {"default"}
        screen.type("\x04")
        assert screen.end() == 0
    environ |= {"TERM": "dumb"}
    with offline() as screen:
        screen.wait("you>")
        screen.type("What is 6 * 7?\n")
        screen.wait(lambda text: "is 42.\n" in text and text.count("you>") == 2)
        screen.type("\x03")
        screen.wait("Ctrl-C again leaves.")
        screen.type("\x03")
        assert screen.end() == 0
    assert b"\x1b" not in screen.raw
    piped = {**environ, "TERM": "xterm"}
    del piped["NO_COLOR"]
    for force, colours in (({}, False), ({"FORCE_COLOR": "1"}, True)):
        done = subprocess.run(
            [*COMMAND, "chat", "--offline", "--usage"],
            env=piped | force,
            input=b"What is 6 * 7?\n",
            capture_output=True,
            check=False,
            timeout=40,
        )
        assert done.returncode == 0, done.stderr
        assert (b"\x1b[" in done.stdout) == colours
        assert b"The result is 42." in done.stdout


WITHOUT_EXTRA = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("prompt_toolkit", "rich"):
            raise ImportError(name)

sys.meta_path.insert(0, Missing())
from repertory.console.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.real_time
def test_without_the_extra_a_chat_is_plain_and_watching_says_what_to_install(environ: dict[str, str]) -> None:
    with on_screen([sys.executable, "-c", WITHOUT_EXTRA, "chat", "--offline"], environ) as screen:
        screen.wait("you>")
        screen.type("What is 6 * 7?\n")
        screen.wait('-> calculator(expression="6 * 7")\n<- calculator: 42\n[offline] The result is 42.\nyou>')
        screen.type("/hlep\n")
        screen.wait("Did you mean /help?")
        screen.type("/exit\n")
        assert screen.end() == 0
    stored = f"{environ['HOME']}/.repertory/sessions.db"
    with on_screen([sys.executable, "-c", WITHOUT_EXTRA, "top", "--at", stored], environ) as screen:
        assert screen.end() == 2
        assert screen.text.strip() == "repertory: watching needs rich: pip install 'repertory[terminal]', or add --once"


@pytest.mark.real_time
def test_a_tool_of_unknown_outcome_is_asked_about_with_all_its_arguments(
    environ: dict[str, str], offline: OpenChat, tmp_path: Path
) -> None:
    killed = """
import os, signal
from repertory import Agent, ScriptedModel, SQLiteSessionManager, tool

@tool
def append_file(path: str, text: str) -> str:
    os.kill(os.getpid(), signal.SIGKILL)

use = {"toolUse": {"name": "append_file", "input": {"path": "a.txt", "text": "line " * 40}}}
Agent(ScriptedModel([use]), tools=[append_file], session_manager=SQLiteSessionManager("chat"))("append to a: line")
"""
    assert subprocess.run([sys.executable, "-c", killed], env=environ, check=False, timeout=40).returncode == -9
    with offline(columns=250) as screen:
        screen.wait("cut short")
        screen.wait_for_prompt()
        screen.type("\r")
        screen.wait("retry, fail, or its result>")
        assert "append_file\n    path = a.txt\n    text = line line" in screen.text
        assert ("line " * 40).strip() in screen.text
        screen.type("\x03\x03")
        screen.wait("Not answered.")
        screen.wait_for_prompt(2)
        screen.type("\rretry\r")
        screen.wait("Appended.")
        screen.type("/exit\r")
        assert screen.end() == 0
    assert (tmp_path / ".repertory/files/a.txt").read_text().startswith("line line")


# What a line means, and what of a growing text is finished.


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("hello", Said("hello")),
        ("//exit", Said("/exit")),
        ("/etc/hosts is what?", Said("/etc/hosts is what?")),
        ("/exit\nand more", Said("/exit\nand more")),
        ("/exit", Ordered("exit", "")),
        ("/Quit ", Ordered("exit", "")),
        ("/?", Ordered("help", "")),
        ("/model  openai:x", Ordered("model", "openai:x")),
        ("/", Said("/")),
    ],
)
def test_a_line_is_a_prompt_or_a_command(line: str, meant: object) -> None:
    assert read_line(line) == meant


def test_a_command_that_does_not_exist_is_answered_with_the_nearest() -> None:
    unknown = read_line("/modle x")
    assert isinstance(unknown, UnknownCommand)
    assert "Did you mean /model?" in unknown.why


PIECES = st.sampled_from(
    [
        "word",
        " ",
        "\n",
        "\n\n",
        "# ",
        "- ",
        "1. ",
        "```",
        "```py\n",
        "> ",
        "| a | b |\n|---|---|\n",
        "**",
        "---\n",
        "    ",
    ]
)


@given(st.lists(PIECES, max_size=40))
def test_a_block_that_is_printed_stays_what_it_is_however_the_text_goes_on(pieces: list[str]) -> None:
    """Fed piece by piece, the text gives the same blocks as the whole text at once, and loses nothing."""
    printed: list[str] = []
    rest = ""
    for piece in pieces:
        blocks, rest = split_blocks(rest + piece)
        printed += blocks
    whole = "".join(pieces)
    assert "".join("".join([*printed, rest]).split()) == "".join(whole.split())
    at_once = split_blocks(whole)
    assert [block.split() for block in printed] == [block.split() for block in at_once.finished]
