"""`repertory chat`: a conversation in a terminal or over a pipe, stored and resumed.

The main thread reads lines and gets signals; turns run in the process's event loop for sync calls. So Ctrl-C interrupts
only the main thread, which then cuts the turn short by `agent.cancel()`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, cast

import anyio

from repertory.app.agent.agent import Agent
from repertory.app.agent.shown_agents import model_named
from repertory.app.host.blocking import blocking_host
from repertory.app.host.model_choice import NothingChosen, choice_of, choose_model
from repertory.app.sessions.sessions import PlacedSession, SQLiteSessions, home
from repertory.backends.folders import make_folders
from repertory.console.chat_commands import Ordered, Said, UnknownCommand, help_lines, read_line
from repertory.console.listing import message_line_groups, shortened, transcript_lines
from repertory.console.terminal import Terminal
from repertory.core.ids import check_id, whereabouts
from repertory.core.interrupts import is_about_outcome
from repertory.core.messages import is_stopped, tool_uses
from repertory.core.plural import counted
from repertory.errors import Invalid, RepertoryError, StoreNotFound
from repertory.operations.sessions import Sessions
from repertory.service.process.terminal_text import harmless
from repertory.toolbox.calculator import calculator
from repertory.toolbox.clock import current_time
from repertory.toolbox.files import file_tools

if TYPE_CHECKING:
    from types import FrameType

    from repertory.app.sessions.sessions import SessionLocation
    from repertory.backends.ports import Model, SessionInfo
    from repertory.console.terminal import TurnDisplay
    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import Message, Prompt
    from repertory.core.result import AgentResult
    from repertory.operations.reading import PositionLike
    from repertory.operations.showing import StoredMessage
    from repertory.service.process.targets import ProgramAgent

DEFAULT_AGENT = "default"


class ForkedChat(NamedTuple):
    """The forked session and its agent."""

    session_id: str
    agent_id: str


async def fork_for_chat(
    place: SessionLocation, source: str, new_id: str | None, agent_id: str | None = None
) -> ForkedChat:
    """Fork `SESSION` or `SESSION@POSITION`: this agent, its only one, or `default`. The default id is the first free
    one of `SESSION-2`, `SESSION-3` and so on.

    Errors: `NotFound`, `AlreadyExists`, `Invalid`, those of the place.
    """
    async with Sessions(place) as sessions:
        existing = {info.session_id: sorted(info.agents) for info in await sessions.list()}
        session_id, at = source_in(source, existing)
        agents = existing.get(session_id)
        if agents is None:
            raise StoreNotFound("no such session", session=session_id)
        agent_id = agent_id or (agents[0] if len(agents) == 1 else DEFAULT_AGENT)
        new_id = new_id or _free_id(session_id, existing)
        await sessions.fork(session_id, new_id, at=at, agent=agent_id)
        return ForkedChat(new_id, agent_id)
    raise AssertionError


def source_in(source: str, existing: dict[str, list[str]]) -> tuple[str, PositionLike]:
    """The session and the position in `source`. An existing session's id may contain an `@`."""
    session_id, at, position = source.rpartition("@")
    if source in existing or not at:
        return source, None
    return session_id, int(position) if position.isdecimal() else position


def _free_id(session_id: str, existing: Container[str]) -> str:
    """The first free one of `SESSION-2`, `SESSION-3` and so on."""
    return next(name for n in count(2) if (name := f"{session_id}-{n}") not in existing)


SYSTEM_PROMPT = (
    "You are a helpful assistant in a terminal. Answer in plain text and briefly. "
    "Use the tools for arithmetic, for the time, and for notes in files."
)
MARKDOWN_PROMPT = SYSTEM_PROMPT.replace("in plain text and briefly", "briefly; Markdown is shown formatted")
ENDED_BY_SIGNAL = 128
"""The number that is added to a signal's for the exit code, as shells show it."""
HISTORY_MAX = 10
_CANCEL_AGAIN_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """The conversation, the model, and the folder for files."""

    session_id: str | None = None
    """The session's id; None: `chat`, or with a `source` a free id."""
    source: str | None = None
    """The session to fork, as `SESSION` or `SESSION@POSITION`."""
    agent_id: str | None = None
    """The agent's id; None: `default`, or the only agent of a program."""
    target: str | None = None
    """The agent of a program, as `MODULE:AGENT`."""
    config: str | None = None
    """The configuration whose agent talks, instead of a target."""
    model: str | None = None
    offline: bool = False
    folder: Path | None = None
    """The folder for the file tools, created when missing. None: `files` beside the default database."""
    place: SessionLocation | None = None
    """The place of the conversation. None: the default database."""
    plain: bool = False
    """True if text comes as the model writes it, without formatting and line editing."""
    usage: bool | None = None
    """True if tokens and seconds are shown after each answer. None: where output is formatted."""
    keeps_prompts: bool = True
    """True if what is typed is kept for the next time, if `place` is the default database."""


def run_chat(settings: ChatSettings, environ: Mapping[str, str]) -> int:
    """Find a model and talk until the input ends. Returns the exit code: 0 done, 2 there is no model.

    Errors: those of opening the session (`SessionBusy`, `Corrupt`, `Invalid`), of the fork (`NotFound`,
    `AlreadyExists`), and over a pipe those of a turn.
    """
    from repertory.service.process.targets import load_agent  # loaded when used

    terminal = open_terminal(settings, environ)
    program = load_agent(settings.target, settings.config, settings.agent_id, settings.place)
    model, label = None, ""
    if program is None or settings.model or settings.offline:
        choice = choose_model(settings.model, offline=settings.offline, environ=environ)
        if isinstance(choice, NothingChosen):
            terminal.remark(choice.why)
            return 2
        model, label = choice.build(), choice.label
    if program is not None:
        if program.session_id is not None and program.session_id != (settings.session_id or program.session_id):
            raise Invalid("this agent has one session: leave --session out", session=program.session_id)
        session_id = settings.session_id or program.session_id or "chat"
        label = label or f"{program.agent_id}, {model_named(program.in_session(session_id).model)}"
        settings = replace(settings, session_id=session_id, agent_id=program.agent_id, place=program.sessions)
    if settings.source is not None:
        place = settings.place or SQLiteSessions()
        forked = anyio.run(fork_for_chat, place, settings.source, settings.session_id, settings.agent_id)
        settings = replace(settings, session_id=forked.session_id, agent_id=forked.agent_id)
    return talk(settings, model, terminal, label=label, program=program)


def open_terminal(settings: ChatSettings, environ: Mapping[str, str]) -> Terminal:
    """Formatted where input and output are a terminal that can do it, or where `FORCE_COLOR` is set; else plain, as it
    also is without the extra `terminal`.

    What is typed is kept in a file only where the conversation is kept in the default place: who chooses another place
    has a reason, and deletes or moves it as one.
    """
    both = sys.stdin.isatty() and sys.stdout.isatty() and environ.get("TERM", "dumb") not in ("", "dumb", "unknown")
    terminal: Terminal | None = None
    if not settings.plain and (both or environ.get("FORCE_COLOR")):
        try:
            from repertory.console.rich_terminal import RichTerminal  # loaded when used
        except ImportError:
            pass
        else:
            keeps = settings.keeps_prompts and settings.place is None
            terminal = RichTerminal(history=home() / "chat_history" if keeps else None)
    terminal = terminal or Terminal()
    if settings.usage is not None:
        terminal.shows_usage = settings.usage
    return terminal


def talk(
    settings: ChatSettings,
    model: Model | None,
    terminal: Terminal,
    *,
    label: str,
    program: ProgramAgent | None = None,
) -> int:
    """Talk with a model until the input ends, or with the agent of a program, by its own model where none is given.
    Returns the exit code.

    Ctrl-C during a turn cuts it short. At the prompt of a terminal it clears the line, and a second one ends the chat;
    over a pipe the first one does. SIGTERM and SIGHUP cut the turn short and end the process with 128 plus their
    number; a second one ends it at once, without a loss of durable messages.
    """
    session_id = check_id(settings.session_id or "chat", "session id")
    folder = settings.folder or home() / "files"
    place = settings.place if program is not None else settings.place or SQLiteSessions()

    def agent_of(session_id: str, agent_id: str, model: Model | None) -> Agent:
        if program is not None:
            agent = program.in_session(session_id)
            agent.model = model or agent.model
            return agent
        make_folders(folder)
        return Agent(
            model,
            agent_id=agent_id,
            tools=[calculator, current_time, *file_tools(folder)],
            system_prompt=MARKDOWN_PROMPT if terminal.formats else SYSTEM_PROMPT,
            callback_handler=None,
            session_manager=PlacedSession(session_id, place),
        )

    with _signals_end_the_process():
        try:
            with Chat(agent_of, place, terminal, label) as chat:
                chat.begin(session_id, settings.agent_id or DEFAULT_AGENT, model)
                with suppress(KeyboardInterrupt):
                    chat.run()
                    return 0
                terminal.remark("")
        finally:
            terminal.close()
    return 0


class Chat:
    """The conversation between one agent and one terminal. A command may go on with another session."""

    def __init__(
        self,
        agent_of: Callable[[str, str, Model | None], Agent],
        place: SessionLocation | None,
        terminal: Terminal,
        label: str,
    ) -> None:
        """`place`: None for a conversation that is stored nowhere. `label`: the model's name for a person."""
        self._agent_of, self._sessions, self._terminal, self._label = agent_of, place, terminal, label
        self._held: Agent | None = None
        self._open = False
        """True if the last turn has no answer yet."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._leave(*exc_info)

    @property
    def _agent(self) -> Agent:
        assert self._held is not None
        return self._held

    @property
    def _session_id(self) -> str:
        return str(self._agent.session_id)

    @property
    def _stored_at(self) -> SessionLocation:
        if self._sessions is None:
            raise Invalid("this conversation is stored nowhere")
        return self._sessions

    def begin(self, session_id: str, agent_id: str, model: Model | None) -> None:
        """Open a session in the place of the one before, which stays open when that fails. Says at once whom it waits
        for. Errors: `NotFound` for a session that has other agents only.
        """
        page: Sequence[SessionInfo] = ()
        if self._sessions is not None:
            page = blocking_host().run(partial(Sessions(self._sessions).list_page, session_id, limit=1))
        for found in page:
            if found.session_id != session_id:
                break
            if agent_id not in (found.agents or (agent_id,)) and not found.damaged:
                others = sorted(found.agents)
                text = f"the session has no agent {agent_id}: add --agent {others[0]}, or choose another --session"
                raise StoreNotFound(text, session=session_id, agents=others)
            if found.owner is not None:
                at = whereabouts(found.owner)
                who = f"process {at['pid']} on {at['host']}" if at else found.owner
                self._terminal.remark(f"Waiting for {harmless(session_id)}, which {harmless(who)} has. Ctrl-C leaves.")
        agent = self._agent_of(session_id, agent_id, model)
        agent.__enter__()
        self._leave(None, None, None)
        self._held = agent
        history = blocking_host().run(agent.history)
        more = " /help shows the commands." if self._terminal.interactive else ""
        where = "not stored" if self._sessions is None else f"session {harmless(session_id)}"
        title = f"{where}, {self._label}; {len(history)} messages."
        self._terminal.remark(f"{title} Ctrl-C stops an answer, Ctrl-D ends.{more}")
        self._open = is_cut_short(history)
        if self._open:
            self._terminal.remark("The last turn was cut short. Press Enter to continue it, or type a new message.")

    def _leave(self, *exc_info: object) -> None:
        agent, self._held = self._held, None
        if agent is not None:
            agent.__exit__(*exc_info)

    def run(self) -> None:
        """Take line after line until the input ends, until `/exit`, or until Ctrl-C while no turn runs."""
        while (line := self._terminal.ask_turn()) is not None:
            if not line.strip():
                if self._open:
                    self._take_turn(None)
                continue
            match read_line(line) if self._terminal.interactive else Said(line):
                case Said(text):
                    self._take_turn(text)
                case UnknownCommand(why):
                    self._terminal.remark(why)
                case Ordered("exit", _):
                    return
                case Ordered(name, rest):
                    self._obey(name, rest)
        if self._terminal.interactive:
            self._terminal.remark("")

    # Turns.

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
        display = self._terminal.begin_turn()
        try:
            future = blocking_host().start(self._stream, prompt, display)
            try:
                return future.result()
            except KeyboardInterrupt:
                return self._stopped(future)
            except SystemExit:
                self._stopped(future, keep_partial=False)  # The next chat may go on from the prompt.
                raise
        finally:
            display.close()

    def _stopped(self, future: Future[AgentResult], *, keep_partial: bool = True) -> AgentResult:
        """Cut the turn short and wait for its end. Cancels repeatedly, since a turn that has not begun ignores it."""
        while not future.done():
            self._agent.cancel(keep_partial=keep_partial)
            wait([future], timeout=_CANCEL_AGAIN_S)
        return future.result()

    async def _stream(self, prompt: Prompt, display: TurnDisplay) -> AgentResult:
        async with aclosing(self._agent.stream_async(prompt)) as events:
            async for event in events:
                display.show(event)
                if "result" in event:
                    return event["result"]
        raise AssertionError("a turn's stream ends with its result or an error")

    def _ask_about(self, interrupts: Sequence[Interrupt]) -> Prompt:
        """The user's answers to the questions; None when there is none to one of them."""
        answers: list[dict[str, object]] = []
        for interrupt in interrupts:
            try:
                response = self._ask_outcome(interrupt) if is_about_outcome(interrupt) else self._ask(interrupt)
            except KeyboardInterrupt:
                if not self._terminal.interactive:
                    raise
                self._terminal.remark("Not answered. Press Enter to be asked again, or type a new message.")
                return None
            if response is None:
                return None
            answers.append({"interruptResponse": {"interruptId": interrupt.id, "response": response}})
        return cast("Prompt", answers)

    def _ask(self, interrupt: Interrupt) -> str | None:
        self._terminal.show_question("The agent asks", interrupt)
        return self._terminal.ask("answer> ")

    def _ask_outcome(self, interrupt: Interrupt) -> object:
        self._terminal.show_question("This tool was cut off, and may or may not have taken effect", interrupt)
        while (answer := self._terminal.ask("retry, fail, or its result> ", ("retry", "fail"))) is not None:
            answer = answer.strip()
            if answer:
                return answer if answer in ("retry", "fail") else {"result": answer}
        return None

    # Commands.

    def _obey(self, name: str, rest: str) -> None:
        """Carry out a command, and say what became of it."""
        try:
            for line in self._carried_out(name, rest):
                self._terminal.remark(line)
        except (RepertoryError, ImportError, OSError) as error:
            if self._held is None:
                raise
            self._terminal.remark(f"repertory: {error}")
        except KeyboardInterrupt:
            if self._held is None:
                raise
            self._terminal.remark("Stopped.")

    def _carried_out(self, name: str, rest: str) -> Iterator[str]:
        match name:
            case "model":
                return self._model(rest)
            case "history":
                return self._history(rest)
            case "new":
                return self._new(rest)
            case "fork":
                return self._fork(rest)
            case "rewind":
                return self._rewind(rest)
            case "tools":
                return self._tools()
            case "usage":
                return self._usage(rest)
            case "save":
                return self._save(rest)
            case _:
                return help_lines()

    def _model(self, asked: str) -> Iterator[str]:
        if asked:
            chosen = choice_of(asked)
            self._agent.model = chosen.build()
            self._label = chosen.label
        yield f"{'From now on' if asked else 'Model'}: {self._label}."

    def _history(self, rest: str) -> Iterator[str]:
        if rest and not rest.isdecimal():
            yield "/history takes a number of messages."
            return
        for group in message_line_groups(blocking_host().run(self._stored)[-int(rest or HISTORY_MAX) :]):
            yield from group

    async def _stored(self) -> Sequence[StoredMessage]:
        """The stored conversation, without what rewinds left behind."""
        agent_id = self._agent.agent_id
        async with Sessions(self._stored_at) as sessions:
            if all(info.session_id != self._session_id for info in await sessions.list()):
                return []
            stored = await sessions.show(self._session_id, agent=agent_id)
            return [each for each in stored.agents[agent_id].messages if not each.left_behind]
        raise AssertionError

    def _new(self, session_id: str) -> Iterator[str]:
        taken = [info.session_id for info in blocking_host().run(Sessions(self._stored_at).list)]
        if session_id in taken:
            yield f"There is a session {session_id} already: repertory chat --session {session_id} goes on with it."
            return
        session_id = check_id(session_id or _free_id(self._session_id, [*taken, self._session_id]), "session id")
        yield f"{self._session_id} is kept: repertory chat --session {self._session_id} goes on with it."
        self.begin(session_id, self._agent.agent_id, self._agent.model)

    def _fork(self, new_id: str) -> Iterator[str]:
        source, agent = self._session_id, self._agent
        if not agent.messages:
            yield "Nothing has been said here yet."
            return
        forked = blocking_host().run(fork_for_chat, self._stored_at, source, new_id or None, agent.agent_id)
        yield f"{source} stays as it is: repertory chat --session {source} goes on with it."
        self.begin(forked.session_id, forked.agent_id, agent.model)

    def _rewind(self, position: str) -> Iterator[str]:
        """Rewind the conversation; the session is let go meanwhile, since a rewind owns it."""
        if not position or not self._agent.messages:
            yield "/rewind takes a number from /history, or the label of a mark."
            return
        session_id, agent_id, model = self._session_id, self._agent.agent_id, self._agent.model
        to = int(position) if position.isdecimal() else position
        self._leave(None, None, None)
        try:
            done = blocking_host().run(partial(Sessions(self._stored_at).rewind, session_id, to, agent=agent_id))
            yield f"Back at #{done.position}; /rewind {done.was} undoes this."
        finally:
            self.begin(session_id, agent_id, model)

    def _tools(self) -> Iterator[str]:
        for name, spec in sorted(self._agent.tool_registry.get_all_tools_config().items()):
            yield f"{name}: {shortened(spec['description'])}"

    def _usage(self, rest: str) -> Iterator[str]:
        if rest not in ("", "on", "off"):
            yield "/usage takes on or off."
            return
        self._terminal.shows_usage = rest == "on" if rest else not self._terminal.shows_usage
        yield f"Tokens and seconds are {'shown' if self._terminal.shows_usage else 'not shown'} after an answer."

    def _save(self, name: str) -> Iterator[str]:
        if not name:
            yield "/save takes the name of a new file."
            return
        messages = blocking_host().run(self._agent.history)
        path = Path(name).expanduser()
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(file, "w", encoding="utf-8", errors="backslashreplace") as out:
            out.writelines(f"{line}\n" for line in transcript_lines(self._session_id, messages))
        yield f"{counted(len(messages), 'message')} written to {path}."


def is_cut_short(messages: Sequence[Message]) -> bool:
    """True if the last turn of a conversation has no answer yet, or one that was stopped."""
    last = messages[-1] if messages else None
    return last is not None and (last["role"] == "user" or any(tool_uses(last)) or is_stopped(last))


@contextmanager
def _signals_end_the_process() -> Generator[None]:
    """A block in which SIGTERM and SIGHUP raise `SystemExit` in the main thread, once; then the old handlers return."""
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
