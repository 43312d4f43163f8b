"""`repertory chat`: a conversation in a terminal or over a pipe, stored and resumed.

The main thread reads lines and gets signals; turns run in the process's event loop for sync calls. So Ctrl-C interrupts
only the main thread, which then cuts the turn short by `agent.cancel()`.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO, cast

import anyio

from repertory.app.agent.agent import Agent
from repertory.app.agent.model_choice import NothingChosen, choose_model
from repertory.app.cli.listing import harmless, interrupt_line, tool_result_line, tool_use_line
from repertory.app.host.blocking import blocking_host
from repertory.app.operations.sessions import Sessions
from repertory.app.sessions.sessions import PlacedSession, SQLiteSessions, home
from repertory.app.toolbox.calculator import calculator
from repertory.app.toolbox.clock import current_time
from repertory.app.toolbox.files import file_tools
from repertory.backends.folders import make_folders
from repertory.core.ids import check_id
from repertory.core.interrupts import is_about_outcome
from repertory.core.messages import tool_uses
from repertory.errors import RepertoryError, StoreNotFound

if TYPE_CHECKING:
    from types import FrameType

    from repertory.app.operations.reading import PositionLike
    from repertory.app.sessions.sessions import SessionPlace
    from repertory.backends.ports import Model
    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import Message, Prompt, ToolResult, ToolUse
    from repertory.core.result import AgentResult, TurnEvent

DEFAULT_AGENT = "default"


class ForkedChat(NamedTuple):
    """The forked session and its agent."""

    session_id: str
    agent_id: str


async def fork_for_chat(place: SessionPlace, source: str, new_id: str | None) -> ForkedChat:
    """Fork `SESSION` or `SESSION@POSITION`: its only agent, or `default`. The default id is the first free one of
    `SESSION-2`, `SESSION-3` and so on.

    Errors: `NotFound`, `AlreadyExists`, `Invalid`, those of the place.
    """
    async with Sessions(place) as sessions:
        existing = {info.session_id: sorted(info.agents) for info in await sessions.list()}
        session_id, at = source_in(source, existing)
        agents = existing.get(session_id)
        if agents is None:
            raise StoreNotFound("no such session", session=session_id)
        agent_id = agents[0] if len(agents) == 1 else DEFAULT_AGENT
        new_id = new_id or next(name for n in count(2) if (name := f"{session_id}-{n}") not in existing)
        await sessions.fork(session_id, new_id, at=at, agent=agent_id)
        return ForkedChat(new_id, agent_id)
    raise AssertionError


def source_in(source: str, existing: dict[str, list[str]]) -> tuple[str, PositionLike]:
    """The session and the position in `source`. An existing session's id may contain an `@`."""
    session_id, at, position = source.rpartition("@")
    if source in existing or not at:
        return source, None
    return session_id, int(position) if position.isdecimal() else position


SYSTEM_PROMPT = (
    "You are a helpful assistant in a terminal. Answer in plain text and briefly. "
    "Use the tools for arithmetic, for the time, and for notes in files."
)
ENDED_BY_SIGNAL = 128
"""Added to a signal's number: the exit code that shells show for a process ended by a signal."""
_CANCEL_AGAIN_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """The conversation, the model, and the folder for files."""

    session_id: str | None = None
    """None: `chat`, or with a `source` a free id."""
    source: str | None = None
    """The session to fork, as `SESSION` or `SESSION@POSITION`."""
    agent_id: str = DEFAULT_AGENT
    model: str | None = None
    offline: bool = False
    folder: Path | None = None
    """The folder for the file tools, created when missing. None: `files` beside the default database."""
    place: SessionPlace | None = None
    """Where the conversation is stored. None: the default database."""


def run_chat(settings: ChatSettings, environ: Mapping[str, str]) -> int:
    """Find a model and talk until the input ends. Returns the exit code: 0 done, 2 there is no model.

    Errors: those of opening the session (`SessionBusy`, `Corrupt`, `Invalid`), of the fork (`NotFound`,
    `AlreadyExists`), and over a pipe those of a turn.
    """
    terminal = Terminal()
    choice = choose_model(settings.model, offline=settings.offline, environ=environ)
    if isinstance(choice, NothingChosen):
        terminal.remark(choice.why)
        return 2
    if settings.source is not None:
        place = settings.place or SQLiteSessions()
        forked = anyio.run(fork_for_chat, place, settings.source, settings.session_id)
        settings = replace(settings, session_id=forked.session_id, agent_id=forked.agent_id)
    return talk(settings, choice.build(), terminal, label=choice.label)


def talk(settings: ChatSettings, model: Model, terminal: Terminal, *, label: str) -> int:
    """Talk with a model until the input ends. Returns the exit code.

    Ctrl-C during a turn cuts it short, at the prompt it ends the chat. SIGTERM and SIGHUP cut the turn short and end
    the process with 128 plus their number; a second one ends it at once, without a loss of durable messages.
    """
    session_id = check_id(settings.session_id or "chat", "session id")
    folder = settings.folder or home() / "files"
    make_folders(folder)
    agent = Agent(
        model,
        agent_id=settings.agent_id,
        tools=[calculator, current_time, *file_tools(folder)],
        system_prompt=SYSTEM_PROMPT,
        callback_handler=None,
        session_manager=PlacedSession(session_id, settings.place or SQLiteSessions()),
    )
    with _signals_end_the_process():
        try:
            with agent:
                Chat(agent, terminal).run(f"session {harmless(session_id)}, {label}")
        except KeyboardInterrupt:
            terminal.remark("")
    return 0


class Chat:
    """The conversation between one agent and one terminal."""

    def __init__(self, agent: Agent, terminal: Terminal) -> None:
        self._agent = agent
        self._terminal = terminal
        self._open = False
        """Whether the last turn has no answer yet."""

    def run(self, title: str) -> None:
        """Take line after line until the input ends, or until Ctrl-C while no turn runs."""
        self._greet(title)
        while (line := self._terminal.ask("you> ")) is not None:
            if line.strip():
                self._take_turn(line)
            elif self._open:
                self._take_turn(None)
        if self._terminal.interactive:
            self._terminal.remark("")

    def _greet(self, title: str) -> None:
        history = blocking_host().run(self._agent.history)
        self._terminal.remark(f"{title}; {len(history)} messages. Ctrl-C stops an answer, Ctrl-D ends.")
        self._open = is_cut_short(history)
        if self._open:
            self._terminal.remark("The last turn was cut short. Press Enter to continue it, or type a new message.")

    def _take_turn(self, prompt: Prompt) -> None:
        """Run a turn to its end, and ask the user the tools' questions and about tools of unknown outcome."""
        try:
            result = self._run_turn(prompt)
            while result.stop_reason == "interrupt":
                answers = self._ask_about(result.interrupts)
                if answers is None:
                    self._open = True
                    return
                result = self._run_turn(answers)
        except RepertoryError as error:
            self._open = is_cut_short(self._agent.messages)
            if not self._terminal.interactive:
                raise
            self._terminal.remark(f"repertory: {error}")
            return
        self._open = result.stop_reason == "cancelled"
        if self._open:
            self._terminal.remark("Stopped. Press Enter to continue it, or type a new message.")

    def _run_turn(self, prompt: Prompt) -> AgentResult:
        """The turn's result. Ctrl-C and the end of the process cut the turn short."""
        future = blocking_host().start(self._stream, prompt)
        try:
            return future.result()
        except KeyboardInterrupt:
            return self._stopped(future)
        except SystemExit:
            self._stopped(future)
            raise

    def _stopped(self, future: Future[AgentResult]) -> AgentResult:
        """Cut the turn short and wait for its end. Cancels repeatedly, since a turn that has not begun ignores it."""
        while not future.done():
            self._agent.cancel()
            wait([future], timeout=_CANCEL_AGAIN_S)
        return future.result()

    async def _stream(self, prompt: Prompt) -> AgentResult:
        show = TurnOnScreen(self._terminal).show
        async with aclosing(self._agent.stream_async(prompt)) as events:
            async for event in events:
                show(event)
                if "result" in event:
                    return cast("AgentResult", event["result"])
        raise AssertionError("a turn's stream ends with its result or an error")

    def _ask_about(self, interrupts: Sequence[Interrupt]) -> Prompt:
        """The user's answers to the questions; None when the input has ended."""
        answers: list[dict[str, object]] = []
        for interrupt in interrupts:
            response = self._ask_outcome(interrupt) if is_about_outcome(interrupt) else self._ask(interrupt)
            if response is None:
                return None
            answers.append({"interruptResponse": {"interruptId": interrupt.id, "response": response}})
        return cast("Prompt", answers)

    def _ask(self, interrupt: Interrupt) -> str | None:
        self._terminal.remark(f"The agent asks: {interrupt_line(interrupt)}")
        return self._terminal.ask("answer> ")

    def _ask_outcome(self, interrupt: Interrupt) -> object:
        line = interrupt_line(interrupt)
        self._terminal.remark(f"This tool was cut off, and may or may not have taken effect: {line}")
        while (answer := self._terminal.ask("retry, fail, or its result> ")) is not None:
            answer = answer.strip()
            if answer:
                return answer if answer in ("retry", "fail") else {"result": answer}
        return None


class TurnOnScreen:
    """Shows one turn: the streamed answer, and a line for each tool that starts and ends."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._inside_line = False
        self._names: dict[str, str] = {}

    def show(self, event: TurnEvent) -> None:
        """Show the event, if it has anything to show."""
        match event:
            case {"data": str(text)}:
                self._terminal.write(harmless(text))
                self._inside_line = not text.endswith("\n")
            case {"tool_started": use}:
                self._tool_started(cast("ToolUse", use))
            case {"tool_finished": result}:
                self._tool_finished(cast("ToolResult", result))
            case {"result": _}:
                self._end_line()
            case _:
                pass

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


def is_cut_short(messages: Sequence[Message]) -> bool:
    """Whether the last turn of a conversation has no answer yet."""
    return bool(messages) and (messages[-1]["role"] == "user" or any(tool_uses(messages[-1])))


@contextmanager
def _signals_end_the_process() -> Generator[None]:
    """SIGTERM and SIGHUP raise `SystemExit` in the main thread, once; then their earlier handlers are restored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        restore()
        raise SystemExit(ENDED_BY_SIGNAL + number)

    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        restore()


class Terminal:
    """Reads lines and writes text. With a pipe there is no prompt, and remarks go to the error stream."""

    def __init__(self, source: TextIO | None = None, out: TextIO | None = None, err: TextIO | None = None) -> None:
        """The default streams are the process's own. A terminal has line editing."""
        self._source, self._out, self._err = source or sys.stdin, out or sys.stdout, err or sys.stderr
        self.interactive = self._source is sys.stdin and self._source.isatty() and self._out.isatty()
        if self.interactive:
            _edit_lines()

    def ask(self, prompt: str) -> str | None:
        """The next line without its line break; None at the end of the input."""
        if self.interactive:
            try:
                return input(prompt)
            except EOFError:
                return None
        line = self._source.readline()
        return line.removesuffix("\n") if line else None

    def write(self, text: str) -> None:
        """Write part of an answer, visible at once and harmless."""
        self._out.write(harmless(text))
        self._out.flush()

    def remark(self, text: str) -> None:
        """Write a remark that is not part of the conversation."""
        stream = self._out if self.interactive else self._err
        stream.write(f"{harmless(text)}\n")
        stream.flush()


def _edit_lines() -> None:
    """Give `input` line editing and a history if Python has them."""
    with suppress(ImportError):
        import_module("readline")
