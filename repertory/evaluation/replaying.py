"""Evaluation by replay: stored turns answered again by another model, prompt or set of tools.

Each pair of a turn and a variant is a session of its own in the scratch place: a fork of the conversation as it was
right before the prompt. Its call has an idempotency token, so whatever a killed process had got done in it is not done
again: a stored answer is read, and a turn that was cut off goes on. The recorded session is only read.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import anyio

from repertory.app.agent.agent import Agent
from repertory.app.agent.tools import as_tools
from repertory.app.sessions.reading import in_thread_when_many, load_journal, opened
from repertory.app.sessions.sessions import PlacedSession, SQLiteSessions
from repertory.app.sessions.storages import InMemoryStorage, JournalSessions
from repertory.backends.line_files import new_file
from repertory.backends.ports import begin
from repertory.backends.worker_threads import run_in_thread
from repertory.core.history.fork import fork as fork_journal
from repertory.core.ids import check_id
from repertory.core.messages import Message, error_result
from repertory.errors import AlreadyExists, Invalid
from repertory.evaluation.decisions.page import replay_page
from repertory.evaluation.decisions.results import (
    ReplayedTurn,
    Score,
    VariantSummary,
    result_line,
    results_in_file,
    row_key,
    summaries,
    summary_lines,
)
from repertory.evaluation.decisions.turns import (
    RecordedTools,
    RecordedTurn,
    TokenPrice,
    TurnOutcome,
    call_key,
    chosen_turns,
    outcome_of,
    recorded_turns,
    seen_tools,
)
from repertory.operations.reading import RecordStamp, chosen_agent, end_of, moment_to_fork
from repertory.operations.sessions import Sessions

if TYPE_CHECKING:
    from repertory.app.agent.conversation_managers import ManagerChoice
    from repertory.app.agent.tools import AnyTool
    from repertory.app.sessions.sessions import SessionLocation
    from repertory.backends.ports import Model, SessionStore, Tool, ToolContext
    from repertory.core.journal.whole_journal import WholeJournal
    from repertory.core.limits import Limits
    from repertory.core.messages import Prompt, SystemPrompt, ToolResult, ToolSpec, ToolUse

UnrecordedTools = Literal["recorded", "live", "refuse"]
"""The rule for a tool call with an input that the recorded turn does not have. `recorded`: the model is told so, and
goes on. `live`: the variant's tool runs, with its effects. `refuse`: as `recorded`, and the row has an error.
"""
RECORDED = "recorded"
"""The name of the recorded answers, in tables of prices; no variant has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The model and settings that answer anew: the fields have the meaning of `Agent`'s arguments.

    Args:
        model: As for `Agent`: a model, the id of a Bedrock model, or None for Bedrock's default.
        conversation_manager: As for `Agent`: None for a sliding window of 40 messages.
        limits: Bounds of each answer; None for the defaults.
    """

    name: str
    """The name of the variant in results; `recorded` is taken."""
    model: Model | str | None = None
    system_prompt: SystemPrompt = None
    """The journal has no system prompts: None answers without one."""
    tools: Sequence[AnyTool] | None = None
    """The tools; None: a stand-in for each tool that the recorded conversation has used, with the names of its
    arguments. A list offers these tools. Either way a call with a recorded name and input gets the recorded result.
    """
    conversation_manager: ManagerChoice = None
    limits: Limits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAnswer:
    """A scorer gets these values.

    Args:
        prompt: The prompt of the turn.
        replayed: The outcome of the replay.
        variant: The name of the variant.
        session: The id of the recorded session.
        position: The sequence number of the prompt.
        recorded_messages: The messages of the turn as they were recorded.
    """

    prompt: str
    recorded: TurnOutcome | None
    """The recorded answer; None for a turn without one."""
    replayed: TurnOutcome
    variant: str
    session: str
    position: int
    messages: Sequence[Message]
    """The messages after the prompt in the replay."""
    recorded_messages: Sequence[Message]


Scorer: TypeAlias = "Callable[[ScoredAnswer], Score | Awaitable[Score]]"
"""A function that returns a number, True or False, or a text. Its `__name__` names the score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayProgress:
    """The progress of a replay.

    Args:
        done: The number of rows so far.
        of: The number of rows at the end: turns times variants.
        row: The row that was made last.
    """

    done: int
    of: int
    resumed: int
    """The number of rows that were in the file before."""
    row: ReplayedTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The results of a replay. `str(evaluation)` is a table, one line per variant.

    Args:
        session_id: The id of the session.
        path: The file of results; None when they are in memory alone.
    """

    session_id: str
    rows: Sequence[ReplayedTurn]
    """The rows in the order of the conversation, within a turn in that of the variants."""
    resumed: int = 0
    """The number of rows that an earlier call had written."""
    path: Path | None = None

    @property
    def summaries(self) -> Sequence[VariantSummary]:
        """The sums, one per variant."""
        return summaries(self.rows)

    def html(self) -> str:
        """The page: a summary, and every turn with its answers side by side. It needs nothing else."""
        return replay_page(self.rows, f"Replay of {self.session_id}")

    async def write_page(self, path: str | os.PathLike[str]) -> None:
        """Write `html` into a file (mode 0600), whole or not at all; an older one is replaced.

        Args:
            path: The HTML file to write.
        """
        async with new_file(Path(path), overwrite=True) as write:
            await write(self.html().encode())

    def __str__(self) -> str:
        return "\n".join(summary_lines(self.rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """The values that all pairs of a turn and a variant share."""

    session_id: str
    agent_id: str
    journal: WholeJournal
    source: SessionStore
    scratch: SessionLocation
    scratch_store: SessionStore
    scorers: Mapping[str, Scorer]
    unrecorded: UnrecordedTools
    prices: Mapping[str, TokenPrice]
    seen: Mapping[str, set[str]]


async def replay(
    sessions: Sessions | SessionLocation,
    session_id: str,
    *,
    variant: Variant | Sequence[Variant],
    scorers: Sequence[Scorer] = (),
    at: Sequence[int | str] = (),
    last: int | None = None,
    agent: str | None = None,
    tools: UnrecordedTools = "recorded",
    concurrency: int = 4,
    out: str | os.PathLike[str] | None = None,
    scratch: SessionLocation | None = None,
    prices: Mapping[str, TokenPrice] | None = None,
    retry_errors: bool = False,
    on_progress: Callable[[ReplayProgress], None] | None = None,
) -> Evaluation:
    """Answer the turns of a stored session again, and compare.

    Each variant answers the turns that begin with a prompt, from the conversation as it was before that prompt. `at`
    and `last` choose some of them. Nothing is written to the session; each answer is a session of its own in `scratch`.
    At most `concurrency` turns run at a time.

    A tool that is called with a name and an input of the recorded turn answers what it answered then. `tools` decides
    about other calls; only `live` lets a tool run, with its effects.

    `on_progress` is called after each row.

    A turn that fails and a scorer that fails are rows with an error; the others go on. Errors: those of the place. When
    the call is cancelled, the rows so far stay in the file.

    Args:
        sessions: The place of the sessions.
        session_id: The id of the session.
        variant: The settings that answer anew: one, or several of different names.
        scorers: Functions that score an answer.
        at: The turns that begin next after these positions or labels; empty for all.
        last: Only so many turns, the latest; None for all.
        agent: The id of the agent in the session; None for its only one, or `default`.
        tools: The rule for a tool call that the recorded turn does not have. `recorded` tells the model so, `refuse`
            also gives the row an error, and `live` runs the tool.
        concurrency: The number of turns that are replayed at the same time.
        out: A file of results, one JSON object per line, written as they come. The same call goes on where an earlier
            one was stopped, however it ended: rows in the file are not made again, an answer that was stored costs no
            second model call. `scratch` is a database beside that file (`results.jsonl.sessions.db`) unless it is
            given; without `out` both are kept in memory. `retry_errors` makes rows with an error again.
        scratch: The place of the sessions of the replay; None for a database beside `out`, or memory without `out`.
        prices: The prices by the name of a variant, or `recorded`.
        retry_errors: True makes rows with an error again.
        on_progress: Called with a `ReplayProgress` after each row.

    Raises:
        NotFound: For a session, agent or label that is not there. Check the name.
        Invalid: For bad arguments, and for a file with results of another variant of the same name. Correct the
            argument.
        Corrupt: For a file that holds something else. Repair it, or restore a copy.
    """
    variants = _checked_variants([variant] if isinstance(variant, Variant) else list(variant))
    named = _checked_scorers(scorers)
    _check_settings(tools, concurrency)
    location = sessions.place if isinstance(sessions, Sessions) else sessions
    results = await _ResultFile.open(None if out is None else Path(out))
    scratch = scratch or _scratch_beside(results.path)
    async with opened(location) as source, opened(scratch) as scratch_store:
        agent_id = await chosen_agent(source, session_id, agent)
        journal = await load_journal(source, session_id, agent_id)
        turns = await in_thread_when_many(partial(chosen_turns, journal, at, last), journal.rows)
        work = _Work(
            session_id=session_id,
            agent_id=agent_id,
            journal=journal,
            source=source,
            scratch=scratch,
            scratch_store=scratch_store,
            scorers=named,
            unrecorded=tools,
            prices=prices or {},
            seen=seen_tools(recorded_turns(journal)),
        )
        pairs = [(turn, each) for turn in turns for each in variants]
        rows = _valid_rows(results.rows, work, variants, retry_errors=retry_errors)
        resumed = sum((session_id, agent_id, turn.position, each.name) in rows for turn, each in pairs)
        pending = iter([pair for pair in pairs if (session_id, agent_id, pair[0].position, pair[1].name) not in rows])
        done = resumed

        async def take() -> None:
            nonlocal done
            for turn, each in pending:  # All takers share the iterator: turns begin in the order of the conversation.
                row = await _replayed(work, turn, each)
                await results.append(row)
                rows[row_key(row)] = row
                done += 1
                if on_progress is not None:
                    on_progress(ReplayProgress(done=done, of=len(pairs), resumed=resumed, row=row))

        async with _one_error(), anyio.create_task_group() as group:
            for _ in range(min(concurrency, len(pairs))):
                group.start_soon(take)
    found = [rows[session_id, agent_id, turn.position, each.name] for turn, each in pairs]
    return Evaluation(session_id=session_id, rows=found, resumed=resumed, path=results.path)


@asynccontextmanager
async def _one_error() -> AsyncGenerator[None]:
    """The first error of a task group, not a group of them."""
    try:
        yield
    except BaseExceptionGroup as group:
        errors, rest = group.split(Exception)
        if rest is not None or errors is None:
            raise
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = cast("BaseExceptionGroup[BaseException]", first).exceptions[0]
        raise first from None


def _checked_variants(variants: Sequence[Variant]) -> Sequence[Variant]:
    names = [check_id(each.name, "variant name") for each in variants]
    if not names or len(set(names)) < len(names) or RECORDED in names:
        raise Invalid(f"variants have names of their own, and none is {RECORDED!r}", names=names)
    return variants


def _checked_scorers(scorers: Sequence[Scorer]) -> Mapping[str, Scorer]:
    named = {str(getattr(each, "__name__", type(each).__name__)): each for each in scorers}
    if len(named) < len(scorers) or not all(map(callable, scorers)):
        raise Invalid("scorers are functions with names of their own", names=list(named))
    return named


def _check_settings(tools: str, concurrency: object) -> None:
    if tools not in ("recorded", "live", "refuse"):
        raise Invalid("tools is 'recorded', 'live' or 'refuse'", got=tools)
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise Invalid("concurrency is a whole number, at least 1", got=concurrency)


def _scratch_beside(path: Path | None) -> SessionLocation:
    if path is None:
        return JournalSessions(InMemoryStorage())
    return SQLiteSessions(path.with_name(f"{path.name}.sessions.db"))


def _settings_of(variant: Variant, unrecorded: UnrecordedTools) -> str:
    """A digest of what decides a variant's answers, as far as it can be told from outside."""
    model = variant.model
    config: object = None
    if model is not None and not isinstance(model, str):
        with _Caught():  # A model of a program's own may have no configuration.
            config = cast("Any", model).get_config()
    tools = None if variant.tools is None else sorted(tool.name for tool in _tools_of(variant.tools))
    specs = [
        model if isinstance(model, str) else type(model).__qualname__,
        config,
        variant.system_prompt,
        tools,
        variant.limits,
        unrecorded,
    ]
    text = json.dumps(specs, sort_keys=True, default=lambda value: type(value).__qualname__)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Caught:
    """Keeps the error that ends its block: of a model, a tool or a scorer of a program, which may raise anything."""

    error: Exception | None = None

    def __enter__(self) -> _Caught:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self.error = error if isinstance(error, Exception) else None
        return self.error is not None

    @property
    def text(self) -> str:
        """The error's class and message."""
        return f"{type(self.error).__name__}: {self.error}"


def _tools_of(tools: Sequence[AnyTool]) -> Sequence[Tool]:
    return cast("Sequence[Tool]", as_tools(tools))


def _valid_rows(
    rows: Sequence[ReplayedTurn], work: _Work, variants: Sequence[Variant], *, retry_errors: bool
) -> dict[tuple[str, str, int, str], ReplayedTurn]:
    """The rows that need not be made again. Errors: `Invalid`."""
    settings = {each.name: _settings_of(each, work.unrecorded) for each in variants}
    found: dict[tuple[str, str, int, str], ReplayedTurn] = {}
    for row in rows:
        if (row.session, row.agent) == (work.session_id, work.agent_id) and row.variant in settings:
            if row.settings != settings[row.variant]:
                text = "the file has results of another variant of this name: choose another file, or another name"
                raise Invalid(text, variant=row.variant, session=row.session)
            if retry_errors and row.error is not None:
                found.pop(row_key(row), None)
            else:
                found[row_key(row)] = row
    return found


# One turn, answered by one variant.


async def _replayed(work: _Work, turn: RecordedTurn, variant: Variant) -> ReplayedTurn:
    settings = _settings_of(variant, work.unrecorded)
    identity = [work.session_id, work.agent_id, turn.position, variant.name, settings]
    replay_id = f"replay-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:24]}"
    recorded = outcome_of(turn.messages, turn.lasted_s, work.prices.get(RECORDED))
    row = partial(
        ReplayedTurn,
        session=work.session_id,
        agent=work.agent_id,
        position=turn.position,
        turn=turn.turn,
        variant=variant.name,
        settings=settings,
        prompt=turn.text,
        recorded=recorded,
        replay_session=replay_id,
    )
    tools = RecordedTools(turn)
    stop_reason, messages, lasted_s = None, list[Message](), None
    with _Caught() as caught:
        begun = await _fork(work, turn, replay_id)
        stop_reason, answered = await _answer(work, turn, variant, replay_id, tools)
        messages = list(answered.messages) if answered is not None else []
        # The same measure as of the recorded turn. It means nothing for one that was cut off, and gone on with later.
        lasted_s = answered.lasted_s if answered is not None and begun else None
    if caught.error is not None:
        return row(replayed=None, error=caught.text)
    replayed = outcome_of(messages, lasted_s, work.prices.get(variant.name))
    if replayed is None:
        return row(replayed=None, stop_reason=stop_reason, error="the turn ended without an answer")
    unmatched = tools.unmatched(messages)
    answer = ScoredAnswer(
        prompt=turn.text,
        recorded=recorded,
        replayed=replayed,
        variant=variant.name,
        session=work.session_id,
        position=turn.position,
        messages=messages,
        recorded_messages=turn.messages,
    )
    scores, score_errors = await _scored(work.scorers, answer)
    refused = f"not recorded: {', '.join(unmatched)}" if unmatched and work.unrecorded == "refuse" else None
    return row(
        replayed=replayed,
        stop_reason=stop_reason,
        same=recorded is not None and recorded.text == replayed.text,
        unmatched=unmatched,
        scores=scores,
        score_errors=score_errors,
        error=refused,
    )


async def _fork(work: _Work, turn: RecordedTurn, replay_id: str) -> bool:
    """Put the conversation before the prompt into the scratch place. False if an earlier call has begun there."""
    position = turn.position - 1
    if await work.scratch_store.load(replay_id, work.agent_id):
        return False
    if position:
        end = await end_of(work.source, work.session_id, work.agent_id)
        then = await moment_to_fork(work.source, work.session_id, work.agent_id, position, end)
        made = RecordStamp(at=time.time(), entropy=os.urandom)
        forked = fork_journal(then, at=made.at, entropy=made.entropy)
        try:
            await begin(work.scratch_store, replay_id, forked.rows)
        except AlreadyExists:  # Another process works on the same file.
            return False
    return True


async def _answer(
    work: _Work, turn: RecordedTurn, variant: Variant, replay_id: str, tools: RecordedTools
) -> tuple[str, RecordedTurn | None]:
    """Run the turn, or go on with it. Returns why it stopped, and the turn as its journal has it."""
    agent = Agent(
        variant.model,
        agent_id=work.agent_id,
        tools=_stand_ins(work, variant, tools),
        system_prompt=variant.system_prompt,
        conversation_manager=variant.conversation_manager,
        limits=variant.limits,
        session_manager=PlacedSession(replay_id, work.scratch),
        callback_handler=None,
        durability="strict",  # A model call that was paid for is stored before anything else happens.
    )
    async with agent:
        result = await agent.invoke_async(cast("Prompt", list(turn.prompt)), idempotency_token=f"turn-{turn.position}")
        journal = await load_journal(work.scratch_store, replay_id, work.agent_id)
    answered = recorded_turns(journal)
    return str(result.stop_reason), answered[-1] if answered else None


async def _scored(scorers: Mapping[str, Scorer], answer: ScoredAnswer) -> tuple[dict[str, Score], dict[str, str]]:
    scores: dict[str, Score] = {}
    errors: dict[str, str] = {}
    for name, scorer in scorers.items():
        with _Caught() as caught:
            found = scorer(answer)
            scores[name] = _checked_score(await found if inspect.isawaitable(found) else found)
        if caught.error is not None:
            errors[name] = caught.text
    return scores, errors


def _checked_score(score: object) -> Score:
    if score is None or isinstance(score, bool | int | float | str):
        return score
    raise Invalid("a scorer gives a number, True or False, or a text", got=type(score).__name__)


# Tools that answer what was recorded.


class RecordedTool:
    """Stands for a tool: a call with a recorded name and input gets the recorded result."""

    timeout_s: float | None = None

    def __init__(self, spec: ToolSpec, recorded: RecordedTools, real: Tool | None) -> None:
        """`real`: the tool that runs for calls that are not recorded; None for none."""
        self.spec = spec
        self._recorded = recorded
        self._real = real
        self._times: dict[bytes, int] = {}

    @property
    def name(self) -> str:
        """The name of the tool that it stands for."""
        return self.spec["name"]

    @property
    def effects(self) -> bool:
        """True if a tool that may run has effects."""
        return self._real is not None and self._real.effects

    @property
    def idempotent(self) -> bool:
        """A recorded result may be given again."""
        return self._real is None or self._real.idempotent

    async def run(self, tool_use: ToolUse, context: ToolContext) -> ToolResult:
        """The recorded result, else that of the tool itself, else an error that says so."""
        key = call_key(tool_use["name"], tool_use["input"])
        found = self._recorded.answer(tool_use, self._times.get(key, 0))
        self._times[key] = self._times.get(key, 0) + 1
        if found is not None:
            return found
        if self._real is not None:
            return await self._real.run(tool_use, context)
        return error_result(
            tool_use["toolUseId"], "Error: this is a replay, and no result is recorded for this tool with this input."
        )


def _stand_ins(work: _Work, variant: Variant, recorded: RecordedTools) -> Sequence[Tool]:
    if variant.tools is None:
        return [RecordedTool(_spec_seen(name, given), recorded, None) for name, given in sorted(work.seen.items())]
    live = work.unrecorded == "live"
    return [RecordedTool(tool.spec, recorded, tool if live else None) for tool in _tools_of(variant.tools)]


def _spec_seen(name: str, arguments: set[str]) -> ToolSpec:
    """A specification of a tool of which only calls are known."""
    properties: dict[str, Any] = {argument: {} for argument in sorted(arguments)}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {"name": name, "description": f"The tool {name}, as recorded.", "inputSchema": {"json": schema}}


# The file of results.


@dataclass(slots=True)
class _ResultFile:
    path: Path | None
    rows: Sequence[ReplayedTurn]
    _lock: anyio.Lock = field(default_factory=anyio.Lock)

    @classmethod
    async def open(cls, path: Path | None) -> _ResultFile:
        """The rows of a file, if it exists; a last line that was cut off is removed. Errors: `Corrupt`, `OSError`."""
        return cls(path, [] if path is None else await run_in_thread(partial(_read_and_mend, path)))

    async def append(self, row: ReplayedTurn) -> None:
        """Add a row, on stable storage when it returns."""
        if self.path is not None:
            async with self._lock:
                await run_in_thread(partial(_append, self.path, result_line(row)))


def _read_and_mend(path: Path) -> Sequence[ReplayedTurn]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    rows, whole = results_in_file(content, str(path))
    if whole < len(content):
        os.truncate(path, whole)
    return rows


def _append(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "ab") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def price_table(content: bytes, name: str) -> Mapping[str, TokenPrice]:
    """Prices from JSON: `{"recorded": {"input": 3, "output": 15}, "small": {...}}`, for a million tokens.

    Errors: `Invalid` naming the file.
    """
    try:
        prices = cast("dict[str, dict[str, float]]", json.loads(content))
        return {variant: TokenPrice(**price) for variant, price in prices.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        msg = f"not a table of prices such as {json.dumps({RECORDED: asdict(TokenPrice(input=3, output=15))})}"
        raise Invalid(msg, file=name, cause=str(error)) from error
