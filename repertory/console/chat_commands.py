"""The commands of a chat: what a line that begins with a slash means. Nothing here acts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from repertory.service.process.terminal_text import did_you_mean


class ChatCommand(NamedTuple):
    """One command, as `/help` shows it."""

    name: str
    arguments: str
    about: str


COMMANDS = (
    ChatCommand("help", "", "show these commands"),
    ChatCommand("model", "[PROVIDER[:ID]]", "the model, or another one from now on"),
    ChatCommand("history", "[N]", "the last N messages (10), with numbers for /rewind"),
    ChatCommand("new", "[ID]", "begin a new session; the old one stays stored"),
    ChatCommand("fork", "[ID]", "go on in a copy of this session"),
    ChatCommand("rewind", "POSITION", "go back; later messages stay stored but hidden"),
    ChatCommand("tools", "", "list the tools"),
    ChatCommand("usage", "[on|off]", "tokens and seconds after each answer, or not"),
    ChatCommand("save", "FILE", "write the conversation to a new Markdown file"),
    ChatCommand("exit", "", "leave; the conversation is kept"),
)
_ALIASES = {"quit": "exit", "q": "exit", "?": "help", "h": "help"}
_COMMAND = re.compile(r"/([A-Za-z?][\w-]*|\?)(?:[ \t]+(.*))?")


class Said(NamedTuple):
    """A prompt for the agent."""

    text: str


class Ordered(NamedTuple):
    """A command of the chat. `rest` is what stands behind its name."""

    name: str
    rest: str


class UnknownCommand(NamedTuple):
    """A command that does not exist; `why` is the sentence to show."""

    why: str


ChatLine: TypeAlias = "Said | Ordered | UnknownCommand"


def read_line(text: str) -> ChatLine:
    """The prompt or command of an input. A command is one line of a slash and a word, so a path (`/etc/hosts`) and a
    pasted text of several lines are prompts; a line that begins with two slashes is a prompt with one.
    """
    if text.startswith("//"):
        return Said(text[1:])
    found = _COMMAND.fullmatch(text.rstrip())
    if found is None:
        return Said(text)
    name = found[1].lower()
    name = _ALIASES.get(name, name)
    names = [command.name for command in COMMANDS]
    if name in names:
        return Ordered(name, (found[2] or "").strip())
    return UnknownCommand(f"There is no command /{found[1]}.{did_you_mean(name, names, '/')} To say it, write //.")


def help_lines() -> Iterator[str]:
    """Every command, and the keys."""
    rows = [(f"/{each.name} {each.arguments}".rstrip(), each.about) for each in COMMANDS]
    width = max(len(syntax) for syntax, _ in rows)
    yield from (f"{syntax.ljust(width)}  {about}" for syntax, about in rows)
    yield "A line that begins with // is said with one slash. Ctrl-C stops an answer, Ctrl-D leaves."


def completions(text: str) -> Sequence[ChatCommand]:
    """The commands that a line may be the beginning of."""
    if not text.startswith("/") or any(letter.isspace() for letter in text):
        return ()
    return [command for command in COMMANDS if command.name.startswith(text[1:].lower())]
