"""A terminal with colours, streamed Markdown and line editing; it takes the extra `terminal`.

Text streams without flicker because little of it moves. Blocks of Markdown that are complete are printed, and stay;
only the last block is drawn again, together with the tools that run, a few times a second, below what was printed. It
is never higher than the screen, since what scrolls off a screen cannot be taken back.

What models and tools say is made harmless twice: before it is read as Markdown, and again when it is drawn, because
Markdown has its own ways to spell a control character (`&#27;`).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, cast

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer, Completion, WordCompleter
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.styles import Style
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

from repertory.app.agent.printer import ASKED_AGAIN, REPLACED, PrintedText
from repertory.backends.folders import make_folders
from repertory.backends.worker_threads import start_thread
from repertory.console.chat_commands import completions
from repertory.console.listing import question_lines, tool_result_line, tool_use_line
from repertory.console.terminal import Terminal, TurnDisplay, usage_line
from repertory.errors import StoreUnavailable
from repertory.service.process.terminal_text import harmless

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyPressEvent

    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import Message, ToolResult, ToolUse
    from repertory.core.result import AgentResult

FRAMES_PER_S = 10
"""The rate at which the live part of the screen is drawn, per second."""
_LIVE_CHARS_MAX = 4_000
"""The longest block in characters that is formatted while it grows: a longer one would take more than a frame."""
_CODE_THEME = "ansi_dark"
"""The terminal's own colours, without a background, so that copied code has no blanks at the end of its lines."""
_HISTORY_BYTES_MAX = 512 * 1024
_STYLE = Style.from_dict({"prompt": "bold", "rprompt": "italic"})


class RichTerminal(Terminal):
    """Formatted output and, if it is a terminal that is written to and read from, line editing."""

    def __init__(self, *, history: Path | None = None) -> None:
        """`history`: the file for what was said, for the next time; None keeps it for this process alone."""
        super().__init__()
        self.console = Console(highlight=False, markup=False, emoji=False)
        self.formats = self.shows_usage = True
        self._ctrl_c_leaves = False
        self._quiet = _Echo(sys.stdin)
        self._turns = self._session(PromptHistory(history) if history else InMemoryHistory())
        self._answers = self._session(InMemoryHistory())

    def _session(self, history: History) -> PromptSession[str] | None:
        if not self.interactive:
            return None
        session: PromptSession[str] = PromptSession(
            history=history,
            multiline=True,
            key_bindings=self._keys(),
            prompt_continuation=lambda width, _line, _wrapped: " " * max(0, width - 2) + "| ",
            rprompt=lambda: "Ctrl-C again leaves" if self._ctrl_c_leaves else "",
            style=_STYLE,
            complete_while_typing=True,
            reserve_space_for_menu=4,
            enable_open_in_editor=False,
        )
        session.default_buffer.on_text_changed += self._disarm
        return session

    def _disarm(self, _: object) -> None:
        self._ctrl_c_leaves = False

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        def send(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            text = buffer.document.text_before_cursor
            open_end = (len(text) - len(text.rstrip("\\"))) % 2
            if open_end and buffer.document.is_cursor_at_the_end:
                buffer.delete_before_cursor()
                buffer.insert_text("\n")
            else:
                buffer.validate_and_handle()

        def new_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        def clear_or_leave(event: KeyPressEvent) -> None:
            if self._ctrl_c_leaves:
                event.app.exit(exception=KeyboardInterrupt(), style="class:aborting")
                return
            event.current_buffer.reset()
            self._ctrl_c_leaves = True

        keys.add("enter")(send)
        keys.add("escape", "enter")(new_line)
        keys.add("c-c")(clear_or_leave)
        keys.add("<sigint>")(clear_or_leave)
        return keys

    def ask(self, prompt: str, choices: Sequence[str] = ()) -> str | None:
        return self._read(self._answers, prompt, WordCompleter(list(choices)) if choices else None)

    def ask_turn(self) -> str | None:
        return self._read(self._turns, "you> ", CommandCompleter())

    def _read(self, session: PromptSession[str] | None, prompt: str, completer: Completer | None) -> str | None:
        if session is None:
            return super().ask(prompt)
        self._ctrl_c_leaves = False
        try:
            return session.prompt([("class:prompt", prompt)], completer=completer)
        except EOFError:
            return None

    def write(self, text: str) -> None:
        self.console.print(Text(harmless(text)), end="")

    def remark(self, text: str) -> None:
        if self.interactive:
            self.console.print(Text(harmless(text), style="dim"))
        else:
            super().remark(text)

    def show_question(self, title: str, interrupt: Interrupt) -> None:
        if not self.interactive:
            return super().show_question(title, interrupt)
        self.console.print(Text(harmless(title), style="bold yellow"))
        for line in question_lines(interrupt):
            self.console.print(Text(f"  {line}"))
        return None

    def begin_turn(self) -> TurnDisplay:
        if self.interactive:
            self._quiet.begin()
        return RichTurn(self.console, live=self.interactive, shows_usage=self.shows_usage, closed=self._quiet.end)

    def close(self) -> None:
        self._quiet.end()


class CommandCompleter(Completer):
    """Completes the commands of a chat."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        del complete_event
        text = document.text
        for command in completions(text):
            yield Completion(f"/{command.name}", start_position=-len(text), display_meta=command.about)


class _Echo:
    """Keys that are pressed while an answer comes are not shown, which would tear it up; the next prompt has them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._before: list[Any] | None = None

    def begin(self) -> None:
        with suppress(ImportError, OSError, ValueError):  # Not everywhere, and not for every stream.
            import termios

            before = termios.tcgetattr(self._stream)
            silent = [*before]
            silent[3] = before[3] & ~termios.ECHO
            termios.tcsetattr(self._stream, termios.TCSADRAIN, silent)
            self._before = before

    def end(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            import termios

            with suppress(OSError, termios.error):
                termios.tcsetattr(self._stream, termios.TCSADRAIN, before)


class PromptHistory(FileHistory):
    """The user's lines, in a file for this user alone. A line that begins with a space is not stored, as in shells."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        self._shorten()
        try:
            return list(super().load_history_strings())
        except OSError:
            return ()

    def store_string(self, string: str) -> None:
        if string.startswith(" ") or not string.strip():
            return
        with suppress(OSError):  # A chat goes on without a history.
            make_folders(self._path.parent)
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            super().store_string(string)

    def _shorten(self) -> None:
        """Keep the newer half of a file that has become large."""
        with suppress(OSError):
            if self._path.stat().st_size > _HISTORY_BYTES_MAX:
                text = self._path.read_bytes()[-_HISTORY_BYTES_MAX // 2 :]
                new = self._path.with_suffix(".new")
                with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                    file.write(text[text.find(b"\n# ") :])
                new.replace(self._path)


# What is shown of a turn.


class GrowingText(NamedTuple):
    """A Markdown text that still grows."""

    finished: Sequence[str]
    """The blocks that cannot change any more."""
    rest: str


def split_blocks(text: str) -> GrowingText:
    """The finished blocks of a text, and the rest. A block is finished when another one has begun behind it, on a line
    that is complete.
    """
    lines = text.splitlines(keepends=True)
    whole = lines if text.endswith("\n") else lines[:-1]
    starts = [token.map[0] for token in Markdown("".join(whole)).parsed if token.level == 0 and token.map]
    starts = sorted(set(starts))
    if len(starts) < 2:
        return GrowingText((), text)
    bounds = [0, *starts[1:]]
    blocks = ("".join(lines[begin:end]).strip("\n") for begin, end in pairwise(bounds))
    return GrowingText([block for block in blocks if block.strip()], "".join(lines[bounds[-1] :]))


class _Harmless:
    """Another renderable with its control characters spelled out, and without empty lines around it."""

    def __init__(self, drawn: RenderableType) -> None:
        self._drawn = drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._drawn, options.update(height=None), pad=False)
        full = [number for number, line in enumerate(lines) if any(text.strip() for text, _, _ in line)]
        for line in lines[full[0] : full[-1] + 1] if full else ():
            for text, style, control in line:
                yield Segment(text if control else harmless(text), style, control)
            yield Segment.line()


class _Tail:
    """The last lines of what another renderable draws: as many as the screen has, less a few."""

    def __init__(self, drawn: RenderableType) -> None:
        self._drawn = drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._drawn, options.update(height=None), pad=False)
        for number, line in enumerate(lines[-max(1, console.height - 3) :]):
            if number:
                yield Segment.line()
            yield from line


class _RunningTool(NamedTuple):
    use: ToolUse
    began_at: float


class RichTurn:
    """Shows one turn: Markdown as it comes, a line for each tool with its outcome and time, at the end the usage."""

    def __init__(
        self,
        console: Console,
        *,
        live: bool,
        shows_usage: bool,
        closed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._clock, self._shows_usage, self._on_closed = console, clock, shows_usage, closed
        self._began_at = clock()
        self._text, self._thought = "", ""
        self._message = PrintedText()
        self._running: dict[str, _RunningTool] = {}
        self._printed = self._ended = False
        fancy = console.encoding.lower().startswith("utf")
        self._marks = ("✓", "✗", "→") if fancy else ("+", "!", ">")
        self._spinner = Spinner("dots" if fancy else "line", style="cyan")
        self._lock = threading.RLock()
        """The lock of drawing: rich computes where the moving part begins before it draws, and not under one lock."""
        self._over = threading.Event()
        self._live: Live | None = None
        if live:
            self._live = Live(
                self,
                console=console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()
            with suppress(StoreUnavailable):  # Without a thread left, the screen changes with each event only.
                start_thread(self._tick, self._live, name="repertory-screen")

    def _tick(self, live: Live) -> None:
        while not self._over.wait(1 / FRAMES_PER_S):
            with self._lock:
                if not self._over.is_set():
                    live.refresh()

    def show(self, event: Mapping[str, object]) -> None:
        with self._lock:
            if not self._ended:
                self._show(event)

    def _show(self, event: Mapping[str, object]) -> None:
        match event:
            case {"data": str(text)}:
                self._end_thought()
                self._take_text(harmless(text))
                self._message.add(text)
            case {"reasoningText": str(text)}:
                self._end_text()
                self._take_thought(harmless(text))
            case {"tool_started": use}:
                self._tool_started(cast("ToolUse", use))
            case {"tool_finished": result}:
                self._tool_finished(cast("ToolResult", result))
            case {"model_retry": dict()}:
                self._begin_again(cast("Mapping[str, object]", event["model_retry"]))
            case {"message": {"role": "assistant"} as message}:
                self._close_message(cast("Message", message))
            case {"message": _}:
                self._end_all()
            case {"result": result}:
                self._end_all()
                self._end_tools()
                if self._shows_usage:
                    line = usage_line(cast("AgentResult", result), self._clock() - self._began_at)
                    self._print(Text(line, style="dim"))
            case _:
                pass

    def close(self) -> None:
        self._over.set()
        with self._lock:
            if self._ended:
                return
            self._end_all()
            self._end_tools()
            self._ended = True
            if self._live is not None:
                self._live.stop()
                self._console.print()
        self._on_closed()

    # The text.

    def _take_text(self, text: str) -> None:
        self._text += text
        if "\n" not in text:
            return
        blocks, rest = split_blocks(self._text)
        if blocks:
            self._text = rest
            self._print_blocks(blocks)

    def _print_blocks(self, blocks: Sequence[str]) -> None:
        for block in blocks:
            self._print(_formatted(block), apart=True)

    def _end_text(self) -> None:
        blocks, rest = split_blocks(f"{self._text}\n")
        self._text = ""
        self._print_blocks([each for each in (*blocks, rest.strip("\n")) if each.strip()])

    def _take_thought(self, text: str) -> None:
        self._thought += text
        whole, mark, rest = self._thought.rpartition("\n\n")
        if mark:
            self._thought = rest
            self._print_thought(whole)

    def _print_thought(self, text: str) -> None:
        if text.strip():
            self._print(Text(text.strip("\n"), style="dim italic"), apart=True)

    def _end_thought(self) -> None:
        text, self._thought = self._thought, ""
        self._print_thought(text)

    def _begin_again(self, retry: Mapping[str, object]) -> None:
        self._end_all()
        anew = " Its answer begins anew." if self._message else ""
        if retry.get("error") is not None:
            line = f"(The model failed; it is asked again in {retry.get('delay_s', 0.0):.1f} s.{anew})"
            self._print(Text(line, style="yellow"))
        elif anew:
            self._print(Text(ASKED_AGAIN, style="yellow"))
        self._message.clear()

    def _close_message(self, message: Message) -> None:
        self._end_all()
        text = self._message.replacement(message)
        if text is not None:
            self._print(Text(REPLACED, style="yellow"))
            self._take_text(harmless(text))
            self._end_text()
        self._message.clear()

    def _end_all(self) -> None:
        self._end_thought()
        self._end_text()

    # The tools.

    def _tool_started(self, use: ToolUse) -> None:
        self._end_all()
        self._running[use["toolUseId"]] = _RunningTool(use, self._clock())
        if self._live is None:
            self._print(self._tool_line(self._marks[2], "cyan", tool_use_line(use), "", ""))

    def _tool_finished(self, result: ToolResult) -> None:
        self._end_all()
        tool = self._running.pop(result["toolUseId"], None)
        failed = result.get("status") == "error"
        self._print_tool(tool, tool_result_line(result), failed=failed)

    def _end_tools(self) -> None:
        """Print the tools without a result as stopped."""
        while self._running:
            _, tool = self._running.popitem()
            self._print_tool(tool, "stopped", failed=True)

    def _print_tool(self, tool: _RunningTool | None, outcome: str, *, failed: bool) -> None:
        mark, style = (self._marks[1], "red") if failed else (self._marks[0], "green")
        what = "tool" if tool is None else tool_use_line(tool.use)
        duration = "" if tool is None else f"{self._clock() - tool.began_at:.1f} s"
        self._print(self._tool_line(mark, style, what, outcome, duration))

    def _tool_line(self, mark: str, style: str, what: str, outcome: str, duration: str) -> Text:
        """One line, whatever the width: the outcome and the time stay legible."""
        room = max(10, self._console.width - cell_len(mark) - cell_len(duration) - 4)
        outcome = _cut(outcome, max(room // 2, room - cell_len(what) - 2))
        what = _cut(what, room - cell_len(outcome) - 2)
        line = Text.assemble((f"{mark} ", style), (what, "bold"), no_wrap=True, overflow="crop")
        if outcome:
            line.append("  ").append(outcome, "red" if style == "red" else "")
        return line.append(f"  {duration}", "dim") if duration else line

    # The screen.

    def _print(self, drawn: RenderableType, *, apart: bool = False) -> None:
        """Print what stays, above what moves. `apart`: with an empty line before it."""
        if apart and self._printed:
            self._console.print(Group(Text(), drawn))
        else:
            self._console.print(drawn)
        self._printed = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The live part of the screen as it is now."""
        del console, options
        yield _Tail(Group(*self._moving()))

    def _moving(self) -> Iterator[RenderableType]:
        if self._ended:
            return
        if self._printed and (self._text.strip() or self._thought.strip()):
            yield Text()
        if self._thought.strip():
            yield Text(self._thought.strip("\n"), style="dim italic")
        if self._text.strip():
            long = len(self._text) > _LIVE_CHARS_MAX
            yield Text(self._text[-_LIVE_CHARS_MAX:]) if long else _formatted(self._text.strip("\n"))
        now = self._clock()
        for tool in list(self._running.values()):
            line = self._tool_line(" ", "cyan", tool_use_line(tool.use), "", f"{now - tool.began_at:.1f} s")
            self._spinner.update(text=line[2:])
            yield self._spinner.render(self._console.get_time())
        if not (self._running or self._text.strip() or self._thought.strip()):
            self._spinner.update(text=Text(f"{now - self._began_at:.0f} s", style="dim"))
            yield self._spinner.render(self._console.get_time())


def _formatted(text: str) -> RenderableType:
    """Markdown. Addresses are shown beside the text of a link, so that it cannot lead elsewhere than it seems to."""
    return _Harmless(Markdown(text, code_theme=_CODE_THEME, hyperlinks=False))


def _cut(text: str, cells_max: int) -> str:
    return text if cell_len(text) <= cells_max else set_cell_size(text, max(1, cells_max - 1)).rstrip() + "…"
