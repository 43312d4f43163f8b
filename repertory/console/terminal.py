"""A terminal as plain text: lines in, text out. It needs no library, and serves pipes as well."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, TextIO, cast

from repertory.app.agent.printer import ASKED_AGAIN, REPLACED, PrintedText
from repertory.console.listing import interrupt_line, tool_result_line, tool_use_line
from repertory.service.process.terminal_text import harmless

if TYPE_CHECKING:
    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import Message, ToolResult, ToolUse
    from repertory.core.result import AgentResult


class TurnDisplay(Protocol):
    """Shows one turn while it runs. It is called from the thread of the event loop."""

    def show(self, event: Mapping[str, object]) -> None:
        """Show the event, if it has anything to show."""
        ...

    def close(self) -> None:
        """End the display, once, after the last event or the failure."""
        ...


class Terminal:
    """Reads lines and writes text. With a pipe there is no prompt, and remarks go to the error stream."""

    def __init__(self, source: TextIO | None = None, out: TextIO | None = None, err: TextIO | None = None) -> None:
        """The default streams are the process's own. A terminal has line editing."""
        self._source, self._out, self._err = source or sys.stdin, out or sys.stdout, err or sys.stderr
        self.interactive = self._source is sys.stdin and self._source.isatty() and self._out.isatty()
        self.formats = False
        """True if Markdown is shown formatted."""
        self.shows_usage = False
        """True if a line about tokens and time follows each turn."""
        if self.interactive:
            with suppress(ImportError):  # Python has no line editing everywhere.
                import_module("readline")

    def ask(self, prompt: str, choices: Sequence[str] = ()) -> str | None:
        """The user's next line, without its line break; None at the end of the input. `choices`: answers to offer.

        Errors: `KeyboardInterrupt` for Ctrl-C.
        """
        del choices
        if self.interactive:
            try:
                return input(prompt)
            except EOFError:
                return None
        line = self._source.readline()
        return line.removesuffix("\n") if line else None

    def ask_turn(self) -> str | None:
        """The next thing that the user says to the agent; None at the end of the input. In a terminal, Ctrl-C clears
        the line first. Errors: `KeyboardInterrupt` for a second one, and over a pipe for the first.
        """
        try:
            return self.ask("you> ")
        except KeyboardInterrupt:
            if not self.interactive:
                raise
        self.remark("\nCtrl-C again leaves.")
        return self.ask("you> ")

    def write(self, text: str) -> None:
        """Write part of an answer, visible at once and harmless."""
        self._out.write(harmless(text))
        self._out.flush()

    def remark(self, text: str) -> None:
        """Write a remark that is not part of the conversation."""
        stream = self._out if self.interactive else self._err
        stream.write(f"{harmless(text)}\n")
        stream.flush()

    def show_question(self, title: str, interrupt: Interrupt) -> None:
        """Show the question of an interrupt, before the answer is read."""
        self.remark(f"{title}: {interrupt_line(interrupt)}")

    def begin_turn(self) -> TurnDisplay:
        """A display for the next turn."""
        return PlainTurn(self)

    def close(self) -> None:
        """Leave the terminal as it was."""


class PlainTurn:
    """Shows one turn as text: the streamed answer, and a line for each tool that starts and ends."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._inside_line = False
        self._text = PrintedText()
        self._names: dict[str, str] = {}
        self._began_at = time.monotonic()

    def show(self, event: Mapping[str, object]) -> None:
        match event:
            case {"data": str(text)}:
                self._write(text)
                self._text.add(text)
            case {"model_retry": _}:
                self._begin_again()
            case {"message": {"role": "assistant"} as message}:
                self._close_message(cast("Message", message))
            case {"tool_started": use}:
                self._tool_started(cast("ToolUse", use))
            case {"tool_finished": result}:
                self._tool_finished(cast("ToolResult", result))
            case {"result": result}:
                self._end_line()
                if self._terminal.shows_usage:
                    took_s = time.monotonic() - self._began_at
                    self._terminal.remark(f"({usage_line(cast('AgentResult', result), took_s)})")
            case _:
                pass

    def close(self) -> None:
        self._end_line()

    def _write(self, text: str) -> None:
        self._terminal.write(harmless(text))
        self._inside_line = not text.endswith("\n")

    def _begin_again(self) -> None:
        if self._text:
            self._end_line()
            self._terminal.write(f"{ASKED_AGAIN}\n")
        self._text.clear()

    def _close_message(self, message: Message) -> None:
        text = self._text.replacement(message)
        if text is not None:
            self._end_line()
            self._terminal.write(f"{REPLACED}\n")
            self._write(text)
        self._text.clear()

    def _tool_started(self, use: ToolUse) -> None:
        self._end_line()
        self._names[use["toolUseId"]] = use["name"]
        self._terminal.write(f"-> {tool_use_line(use)}\n")

    def _tool_finished(self, result: ToolResult) -> None:
        self._end_line()
        name = self._names.get(result["toolUseId"], "tool")
        self._terminal.write(f"<- {harmless(name)}: {tool_result_line(result)}\n")

    def _end_line(self) -> None:
        if self._inside_line:
            self._terminal.write("\n")
        self._inside_line = False


def usage_line(result: AgentResult, took_s: float) -> str:
    """The use of a turn: tokens in and out, seconds, and the model calls if there were several."""
    metrics = result.metrics
    parts = [f"{metrics.input_tokens:,} tokens in", f"{metrics.output_tokens:,} out", f"{took_s:.1f} s"]
    if metrics.steps > 1:
        parts.append(f"{metrics.steps} model calls")
    return ", ".join(parts)
