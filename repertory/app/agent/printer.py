"""Callback handlers that print."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dis import opmap
from inspect import currentframe
from typing import TYPE_CHECKING, cast

from repertory.core.messages import text_of, texts_in

if TYPE_CHECKING:
    from repertory.core.messages import Message
    from repertory.core.stream_events import AgentStreamEvent

ASKED_AGAIN = "(The model is asked again. Its answer begins anew.)"
"""The line after words that do not count because the model has to answer again."""
REPLACED = "(This replaces the answer above.)"
"""The line between words that do not count and the message in their place."""


class PrintedText:
    """The text of one message that was printed as it came, where nothing can be taken back."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, text: str) -> None:
        """Note a piece that was printed."""
        if text:
            self._pieces.append(text)

    def replacement(self, message: Message) -> str | None:
        """The text of the whole message if it does not begin with what was printed; else None."""
        printed, text = "".join(self._pieces), "".join(texts_in(message))
        if text.startswith(printed):
            return None
        # Pieces may cut a surrogate pair in two.
        whole = printed.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return None if text.startswith(whole) else text

    def clear(self) -> None:
        """Forget the pieces: another message begins."""
        self._pieces.clear()


class TextOfTurn:
    """The text of a turn, as it comes, for readers to whom nothing can be taken back."""

    def __init__(self) -> None:
        self._streamed, self._whole, self._begun = PrintedText(), "", False

    def told(self, event: AgentStreamEvent) -> str:
        """The text that this event adds; empty for none."""
        piece, apart = "", "\n"
        if "data" in event:
            piece, apart = event["data"], "" if self._streamed else apart
            self._streamed.add(piece)
        elif "model_retry" in event:
            piece = ASKED_AGAIN if self._streamed else ""
            self._streamed.clear()
        elif "message" in event and event["message"]["role"] == "assistant":
            again, self._whole = self._streamed.replacement(event["message"]), text_of(event["message"])
            piece = f"{REPLACED}\n{again}" if again is not None else "" if self._streamed else self._whole
            self._streamed.clear()
        elif "result" in event:
            piece = str(event["result"]) if str(event["result"]) != self._whole else ""
        text = f"{apart}{piece}" if piece and self._begun else piece
        self._begun = self._begun or bool(piece)
        return text


class PrintingCallbackHandler:
    """Prints answers as they stream, reasoning included, and a numbered line for each tool that the model asks for.

    What is printed cannot be taken back. When the model is asked again in the middle of an answer, the next try begins
    on a new line, below one that says so. A message that a guardrail or a hook has replaced is printed whole.
    """

    def __init__(self, verbose_tool_use: bool = True) -> None:
        """`verbose_tool_use`: True if tools are printed."""
        self.tool_count = 0
        self._verbose_tool_use = verbose_tool_use
        self._tools_before = 0
        """The number of tool uses in the messages that are whole."""
        self._printed = False
        """True if something of the message that is being told is printed."""
        self._text = PrintedText()

    def __call__(self, **event: object) -> None:
        end = "\n" if event.get("complete") else ""
        for piece, after in ((event.get("reasoningText"), ""), (event.get("data"), end)):
            if isinstance(piece, str) and piece:
                print(piece, end=after)
                sys.stdout.flush()
                self._printed = True
        if isinstance(text := event.get("data"), str):
            self._text.add(text)
        match event:
            case {"event": {"contentBlockStart": {"start": {"toolUse": {"name": str(name)}}}}}:
                self._print_tool(name)
            case {"model_retry": _}:
                self._begin_again()
            case {"message": {"role": "assistant"} as message}:
                self._close(cast("Message", message))
            case _:
                pass
        if end and event.get("data"):
            print("\n")
        if "result" in event:
            print()
            self._begin_message()

    def _print_tool(self, name: str) -> None:
        self.tool_count += 1
        if self._verbose_tool_use:
            print(f"\nTool #{self.tool_count}: {name}")
            self._printed = True

    def _begin_again(self) -> None:
        if self._printed:
            print(f"\n{ASKED_AGAIN}")
        self.tool_count = self._tools_before
        self._begin_message()

    def _close(self, message: Message) -> None:
        text = self._text.replacement(message)
        if text is not None:
            print(f"\n{REPLACED}\n{text}", end="")
            sys.stdout.flush()
        self._begin_message()

    def _begin_message(self) -> None:
        self._printed, self._tools_before = False, self.tool_count
        self._text.clear()


class TerminalCallbackHandler(PrintingCallbackHandler):
    """The callback handler of agents that were given none. On a terminal it prints calls whose result nobody takes."""


_PACKAGE = __name__.partition(".")[0]
_CACHE, _POP_TOP = opmap["CACHE"], opmap["POP_TOP"]


def somebody_watches() -> bool:
    """True if the running call is a statement of its own, as in `agent("Hi!")`, on a terminal: its caller looks at the
    answer, and does not print it himself.
    """
    is_terminal = getattr(sys.stdout, "isatty", None)
    if is_terminal is None or not is_terminal() or threading.current_thread() is not threading.main_thread():
        return False
    frame = currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    if frame is None or hasattr(sys, "ps1"):
        return frame is not None
    code, at = frame.f_code.co_code, frame.f_lasti + 2  # Each instruction has two bytes.
    while code[at] == _CACHE:
        at += 2
    return code[at] == _POP_TOP


class CompositeCallbackHandler:
    """Calls several callback handlers, in order. None of them may be asynchronous."""

    def __init__(self, *handlers: Callable[..., object]) -> None:
        self.handlers = handlers

    def __call__(self, **event: object) -> None:
        for handler in self.handlers:
            handler(**event)


def null_callback_handler(**event: object) -> None:
    """Prints nothing; the same as `callback_handler=None`."""
