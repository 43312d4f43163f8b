"""`repertory sessions ...`: the operations on stored sessions as commands."""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, cast

import anyio

from repertory.app.memory.sqlite import SQLiteMemoryStore
from repertory.backends.line_files import new_file
from repertory.backends.worker_threads import run_foreign, run_in_thread
from repertory.console import listing
from repertory.console.places import (
    FORMS,
    KEY_FORMS,
    add_location_option,
    checked_argument,
    existing_location,
    keys_named,
    location_named,
    with_examples,
    with_keys,
)
from repertory.console.progress_bar import progress_on_terminal
from repertory.core.interrupts import is_yes
from repertory.core.turns.subagents import without_subagents
from repertory.errors import Invalid, NotFound
from repertory.operations.sessions import Sessions
from repertory.service.process.terminal_text import did_you_mean, harmless

if TYPE_CHECKING:
    from repertory.core.messages import Json
    from repertory.operations.branching import CopyReport, RewindReport
    from repertory.operations.erasing import (
        DeletionProof,
        ExpiryReport,
        ForgottenMemories,
        RedactionReport,
        TextRedactionReport,
    )
    from repertory.operations.marking import PruneReport
    from repertory.operations.questions import OpenQuestion
    from repertory.operations.showing import StoredAgent, StoredSession

_AGES = "a number of seconds, or 45m, 12h, 30d, 8w"
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_AGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw]?)")


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """The output of a command."""

    report: object
    """None when the command has written its output itself."""
    lines: Iterator[str]
    code: int = 0


CliCommand = Callable[[argparse.Namespace, Sessions], Awaitable[CommandOutput]]


class Declined(Exception):
    """The user was asked, and did not say yes."""


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Every command, with its options and its help."""
    commands = parser.add_subparsers(dest="action", required=True)

    def add(
        name: str, run: CliCommand, text: str, *, writes: bool = False, asks: bool = False
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, **with_examples(text, EXAMPLES[name]))
        command.set_defaults(run=run)
        add_location_option(command)
        command.add_argument("--json", action="store_true", help="print the report as JSON")
        if writes:
            command.add_argument("--takeover", action="store_true", help="take the session from its live owner")
        if asks:
            command.add_argument("--yes", action="store_true", help="do not ask for confirmation")
        return command

    add("list", _list, "list every session, the most recently changed first")
    add("pending", _pending_work, "list the pending work of sessions, and what is parked")
    questions = add("questions", _questions, "list the open questions to a person in all sessions")
    answer = add("answer", _answer, "answer a question to a person, so that its turn goes on")
    delivered = add("deliveries", _deliveries, "list the events that sessions have to deliver, and those given up")
    resend = add("resend", _deliveries, "send deliveries that were given up once more", writes=True)
    _add_delivery_options(delivered, resend)
    show = add("show", _show, "print every message of a session")
    history = add("history", _history, "list the positions to go back to, and what happened there")
    graph = add("graph", _graph, "draw the branches of a session, with its labels and rewinds")
    search = add("search", _search, "find the messages that contain all of the given words")
    _add_question_options(questions, answer)
    _add_search_options(search)
    export = add("export", _export, "write a session to FILE (-: standard output)")
    imports = add("import", _import, "store the session that an exported file holds", writes=True)
    imports.add_argument("file", metavar="FILE")
    copy = add("copy", _copy, "copy a session to another place", writes=True)
    fork = add("fork", _fork, "make a session that goes on from a position of another")
    diff = add("diff", _diff, "compare two sessions")
    rewind = add("rewind", _rewind, "go back to a position; later messages stay stored but hidden", writes=True)
    unsummarize = add("drop-summary", _drop_summary, "show the model the summarized messages again", writes=True)
    mark = add("mark", _mark, "give a position of a session a label", writes=True)
    prune = add("prune", _prune, "erase marks, and messages that rewinds left behind", asks=True)
    redact = add("redact", _redact, "replace the text of a message, and erase it", writes=True, asks=True)
    retext = add(
        "redact-text", _redact_text, "replace a text everywhere in a session, and erase it", writes=True, asks=True
    )
    delete = add("delete", _delete, "erase a session", writes=True, asks=True)
    named = (show, history, graph, export, copy, fork, diff, rewind, unsummarize, mark, prune, redact, retext, delete)
    rotate = add("rotate-key", _rotate_key, "give an encrypted session another key", writes=True)
    shred = add("erase-key", _erase_key, "erase an encrypted session by its key", writes=True, asks=True)
    for command in (*named, rotate, shred, resend):
        command.add_argument("session", metavar="ID")
    for command in (show, history, graph, fork, diff, rewind, unsummarize, mark, prune, redact, retext, resend):
        command.add_argument("--agent", metavar="ID", help="the agent (default: the only one, or `default`)")
    export.add_argument("file", metavar="FILE")
    export.add_argument("--force", action="store_true", help="replace FILE if it exists")
    _add_copy_options(imports, copy)
    fork.add_argument("new_id", metavar="NEW")
    diff.add_argument("other", metavar="OTHER")
    _add_position_options(fork, diff, rewind, mark)
    _add_prune_options(prune)
    _add_graph_options(graph)
    _add_redaction_options(redact, retext)
    expire = add("expire", _expire, "delete every session that has not changed for AGE", asks=True)
    expire.add_argument("age", type=checked_argument(_age_s), metavar="AGE", help=_AGES)
    expire.add_argument("--dry-run", action="store_true", help="only print what would be deleted")
    doctor = add("doctor", _doctor, "examine every session; exits with 1 when something is damaged")
    doctor.add_argument("--repair", action="store_true", help="move damaged data aside, so that the rest opens")
    for command in (search, export, imports, copy, expire, doctor):
        command.add_argument("--quiet", action="store_true", help="show no progress")


EXAMPLES = {  # Of each command below `sessions`, by its name.
    "list": "list\nlist --at postgresql://agents@db/agents --json",
    "pending": "pending --at agents.db",
    "questions": "questions --at agents.db\nquestions --older-than 1h --newest-first --json",
    "answer": 'answer groceries yes --at agents.db\nanswer groceries \'{"seat": "12A"}\' --with shop:runtime',
    "deliveries": "deliveries --at agents.db\ndeliveries groceries --dead --json",
    "resend": "resend groceries --at agents.db\nresend groceries --id evt_c22393a634900604264020fd7aadbb37",
    "show": "show groceries\nshow groceries --json",
    "history": "history groceries",
    "graph": "graph groceries\ngraph groceries --out groceries.svg",
    "search": "search rye bread\nsearch rye bread --session groceries --max 10",
    "export": "export groceries groceries.jsonl\nexport groceries - | gzip > groceries.jsonl.gz",
    "import": "import groceries.jsonl\nimport groceries.jsonl --as groceries-2",
    "copy": "copy groceries --to files:documents\ncopy groceries --to s3://bucket/agents --as groceries-2",
    "fork": "fork groceries groceries-2\nfork groceries groceries-2 --position 12",
    "diff": "diff groceries groceries-2\ndiff groceries groceries --position 12",
    "rewind": "rewind groceries 12\nrewind groceries before-the-order",
    "drop-summary": "drop-summary groceries",
    "mark": 'mark groceries before-the-order\nmark groceries start --position 2 --note "as agreed"',
    "prune": "prune groceries --keep 5 --dry-run\nprune groceries --older-than 30d --beyond-rewinds",
    "redact": "redact groceries 3\nredact groceries 3 '[a phone number]' --memory memory.db",
    "redact-text": "redact-text groceries '+44 20 7946 0000'\nredact-text groceries - --yes < secret.txt",
    "delete": "delete groceries",
    "rotate-key": "rotate-key groceries --keys keys",
    "erase-key": "erase-key groceries --keys keys",
    "expire": "expire 30d --dry-run\nexpire 8w --yes",
    "doctor": "doctor\ndoctor --at journal:agents --repair",
}


def _add_search_options(search: argparse.ArgumentParser) -> None:
    search.add_argument("words", nargs="+", metavar="WORD")
    search.add_argument("--session", metavar="ID", help="search this session only")
    search.add_argument("--max", type=int, default=100, metavar="N", help="the most messages to print (default: 100)")


def _add_question_options(questions: argparse.ArgumentParser, answer: argparse.ArgumentParser) -> None:
    for command in (questions, answer):
        command.add_argument("--agent", metavar="ID", help="only questions to this agent, graph or swarm")
    questions.add_argument("--tenant", metavar="NAME", help="only sessions of this tenant of a service")
    for name in ("older", "newer"):
        text = f"only what was asked longer ago than {_AGES}" if name == "older" else "only what was asked since then"
        questions.add_argument(f"--{name}-than", type=checked_argument(_age_s), metavar="AGE", help=text)
    questions.add_argument("--newest-first", action="store_true", help="begin with the last changed sessions")
    questions.add_argument("--after", default="", metavar="CURSOR", help="go on behind an earlier page")
    questions.add_argument("--max", type=int, default=100, metavar="N", help="the most questions (default: 100)")
    answer.add_argument("session", metavar="ID")
    answer.add_argument("value", metavar="VALUE", help="the answer: JSON, or any other text as it is")
    answer.add_argument("--interrupt", metavar="ID", help="the question (default: the only one)")
    text = "go on with the turn here, in this runtime and its sessions (default: store the answer for one that runs)"
    answer.add_argument("--with", dest="program", metavar="MODULE:RUNTIME", help=text)


def _add_delivery_options(delivered: argparse.ArgumentParser, resend: argparse.ArgumentParser) -> None:
    delivered.add_argument("session", metavar="ID", nargs="?", help="the session (default: all)")
    delivered.add_argument("--dead", action="store_true", help="only those that were given up")
    resend.add_argument("--id", dest="ids", action="append", metavar="ID", help="this delivery (default: all)")


def _add_position_options(
    fork: argparse.ArgumentParser,
    diff: argparse.ArgumentParser,
    rewind: argparse.ArgumentParser,
    mark: argparse.ArgumentParser,
) -> None:
    position = "a number from `history` or `show`, or the label of a mark (default: the end)"
    for command in (fork, diff):
        command.add_argument("--position", type=_position, metavar="P", help=position)
    diff.add_argument("--other-position", type=_position, metavar="P", help="a position of the other session")
    rewind.add_argument("to", type=_position, metavar="POSITION", help=position.partition(" (")[0])
    mark.add_argument("label", metavar="LABEL", help="the label; a label that exists moves to the new position")
    mark.add_argument("--position", type=int, metavar="N", help="the position (default: the end)")
    mark.add_argument("--note", metavar="TEXT", help="a note to store with the mark")


def _add_copy_options(imports: argparse.ArgumentParser, copy: argparse.ArgumentParser) -> None:
    copy.add_argument("--to", required=True, metavar="PLACE", type=checked_argument(location_named), help=FORMS)
    keys = f"encrypt the copy with keys there: {KEY_FORMS}"
    copy.add_argument("--to-keys", metavar="KEYS", type=checked_argument(keys_named), help=keys)
    for command in (imports, copy):
        command.add_argument("--as", dest="new_id", metavar="ID", help="the new session id (default: the same)")


def _add_prune_options(prune: argparse.ArgumentParser) -> None:
    prune.add_argument("--keep", type=int, metavar="N", help="keep only the newest N marks")
    prune.add_argument(
        "--older-than", type=checked_argument(_age_s), metavar="AGE", help=f"erase only what is older than {_AGES}"
    )
    prune.add_argument("--beyond-rewinds", action="store_true", help="also erase messages that rewinds left behind")
    prune.add_argument("--dry-run", action="store_true", help="only print what would be erased")


def _add_graph_options(graph: argparse.ArgumentParser) -> None:
    graph.add_argument("--out", metavar="FILE", help="write an SVG picture to FILE (-: standard output)")
    graph.add_argument("--force", action="store_true", help="replace FILE if it exists")


def _add_redaction_options(redact: argparse.ArgumentParser, retext: argparse.ArgumentParser) -> None:
    redact.add_argument("seq", type=int, metavar="NUMBER", help="the number of the message, from `show`")
    redact.add_argument(
        "text", nargs="?", default="[redacted]", metavar="TEXT", help="the text to put there (default: [redacted])"
    )
    retext.add_argument("text", metavar="TEXT", help="the exact text; with - and --yes it is read from standard input")
    retext.add_argument(
        "instead",
        nargs="?",
        default="[redacted]",
        metavar="REPLACEMENT",
        help="the text to put there (default: [redacted])",
    )
    for command in (redact, retext):
        command.add_argument("--memory", metavar="FILE", help="a memory database to erase it from as well")


def run_command(options: argparse.Namespace) -> int:
    """Run one command. Returns the exit code: 0 done; 1 the user declined, or a session is damaged."""
    # In a place that may be new, or is not the one that is meant.
    begins = options.action in ("import", "post") or getattr(options, "wait", 0) or getattr(options, "program", None)
    sessions = Sessions(existing_location(options, new=bool(begins)))

    async def run() -> CommandOutput:
        async with known_sessions(sessions):
            return await options.run(options, sessions)
        raise AssertionError

    try:
        outcome = anyio.run(run)
    except Declined:
        sys.stderr.write("Nothing was changed.\n")
        return 1
    if options.json and outcome.report is not None:
        sys.stdout.write(f"{listing.report_json(outcome.report)}\n")
    else:
        sys.stdout.writelines(f"{harmless(line)}\n" for line in outcome.lines)
    return outcome.code


@asynccontextmanager
async def known_sessions(sessions: Sessions) -> AsyncGenerator[None]:
    """A block in which the error for a session that is not there notes which was probably meant."""
    try:
        yield
    except NotFound as error:
        name = str(error.fields.get("session", ""))
        if str(error).startswith("no such session"):
            near = await sessions.list_page(name[:1])
            error.add_note(did_you_mean(name, [each.session_id for each in near]))
        raise


async def _list(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    del options
    found = await sessions.list()
    return CommandOutput(found, listing.session_table(found))


async def _pending_work(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    del options
    found = await sessions.pending_work()
    return CommandOutput(found, listing.pending_work_table(found))


async def _questions(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    page = await sessions.interrupts(
        agent=options.agent,
        tenant=options.tenant,
        older_than=options.older_than or 0,
        newer_than=math.inf if options.newer_than is None else options.newer_than,
        newest_first=options.newest_first,
        after=options.after,
        limit=options.max,
    )
    return CommandOutput(page, listing.question_table(page))


async def _deliveries(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    """List deliveries, or send those again that were given up."""
    if options.action == "deliveries":
        found = await sessions.deliveries(options.session, dead=options.dead)
        return CommandOutput(found, listing.delivery_table(found))
    sent = await sessions.resend(options.session, options.ids, agent=options.agent, takeover=options.takeover)
    lines = (f"{harmless(each.id)} is sent to {harmless(each.to)} again." for each in sent)
    return CommandOutput(sent, lines)


async def _answer(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    """Answer in the runtime of a program, or post the answer for the next one that has the agent."""
    runtime = None
    if options.program is not None:
        from repertory.service.process.targets import load_target  # loaded when used

        runtime = load_target(options.program)
        if runtime.sessions is None:
            raise Invalid("this runtime keeps its sessions in memory: nothing is stored", target=options.program)
        sessions = Sessions(runtime.sessions)
    asked = _asked(options, await sessions.interrupts_in(options.session))
    answer = _value(options.value)
    if runtime is None:
        token = await sessions.answer(options.session, asked.interrupt.id, answer)
        text = f"The answer is stored: a process that has {harmless(asked.agent)} goes on with turn {token}."
        return CommandOutput({"token": token}, iter([text]))
    async with runtime:
        hosted = runtime.served.get(asked.agent_id)
        if hosted is None:
            raise NotFound("the runtime has no such agent", agent=asked.agent, agents=sorted(runtime.served))
        result = await hosted.session(options.session).invoke([asked.interrupt.respond(answer)])
    return CommandOutput(result.to_dict(), iter(str(result).splitlines()))


def _asked(options: argparse.Namespace, questions: Sequence[OpenQuestion]) -> OpenQuestion:
    """The question that is meant. Errors: `NotFound`; `Invalid` for several."""
    found = [one for one in questions if options.agent in (None, one.agent)]
    found = [one for one in found if options.interrupt in (None, one.interrupt.id)]
    if not found:
        raise NotFound("nobody asks that in this session", session=options.session, interrupt=options.interrupt)
    if len(found) > 1:
        ids = {one.interrupt.id: one.interrupt.text for one in found}
        raise Invalid("several questions are open: say which one, with --interrupt", questions=ids)
    return found[0]


def _value(text: str) -> Json:
    """The JSON in the text, or the text."""
    try:
        return cast("Json", json.loads(text))
    except ValueError:
        return text


async def _show(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    found = await sessions.show(options.session, agent=options.agent)
    return CommandOutput(found, listing.history_lines(_only(found)) if not options.json else iter(()))


async def _history(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    found = await sessions.history(options.session, agent=options.agent)
    return CommandOutput(found, listing.happening_lines(found))


async def _graph(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    found = await sessions.graph(options.session, agent=options.agent)
    if options.out is None:
        return CommandOutput({"svg": found.svg, "text": found.text}, iter(found.text.splitlines()))
    if options.out == "-":
        await _write_out(found.svg.encode())
        return CommandOutput(None, iter(()))
    async with new_file(Path(options.out), overwrite=options.force) as write:
        await write(found.svg.encode())
    return CommandOutput({"file": options.out}, iter([f"Drawn in {harmless(options.out)}."]))


async def _mark(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    note = {} if options.note is None else {"note": options.note}
    done = await sessions.mark(
        options.session, options.label, note, at=options.position, agent=options.agent, takeover=options.takeover
    )
    return CommandOutput(
        done, iter([f"{harmless(options.session)}: {harmless(done.label)} now labels #{done.position}."])
    )


async def _prune(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    prune = partial(
        sessions.prune,
        options.session,
        keep=options.keep,
        older_than=options.older_than,
        beyond_rewinds=options.beyond_rewinds,
        agent=options.agent,
    )
    planned = await prune(dry_run=True)
    if not options.dry_run and planned.erased:
        question = f"Erase {len(planned.erased)} records of {harmless(options.session)}? This cannot be undone."
        await _ask(options, question)
        planned = await prune()
    return CommandOutput(planned, _prune_lines(planned))


async def _search(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    with progress_on_terminal(options) as progress:
        found = await sessions.search(
            " ".join(options.words), session_id=options.session, hits_max=options.max, progress=progress
        )
    return CommandOutput(found, listing.hit_lines(found), 0 if found.hits else 1)


async def _export(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    if options.file == "-":
        with progress_on_terminal(options) as progress:
            await sessions.write_export(options.session, _write_out, progress=progress)
        return CommandOutput(None, iter(()))
    with progress_on_terminal(options) as progress:
        done = await sessions.export(options.session, Path(options.file), overwrite=options.force, progress=progress)
    return CommandOutput(done, iter([f"{_copied(done, 'exported')} to {harmless(options.file)}."]))


async def _import(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    with progress_on_terminal(options) as progress:
        done = await sessions.import_(
            Path(options.file), session_id=options.new_id, takeover=options.takeover, progress=progress
        )
    return CommandOutput(done, iter([f"{_copied(done, 'imported')}."]))


async def _copy(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    with progress_on_terminal(options) as progress:
        done = await sessions.copy(
            options.session,
            with_keys(options.to, options.to_keys),
            new_id=options.new_id,
            takeover=options.takeover,
            progress=progress,
        )
    return CommandOutput(done, iter([f"{_copied(done, 'copied')}."]))


async def _fork(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    done = await sessions.fork(options.session, options.new_id, at=options.position, agent=options.agent)
    places = ", ".join(f"{harmless(agent)} at #{position}" for agent, position in done.positions.items())
    text = f"{harmless(done.session_id)}: forked from {harmless(done.source)}, {places}; {done.messages} messages."
    return CommandOutput(done, iter([text]))


async def _diff(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    found = await sessions.diff(
        options.session, options.other, at=options.position, other_at=options.other_position, agent=options.agent
    )
    return CommandOutput(found, listing.difference_lines(found))


async def _rewind(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    done = await sessions.rewind(options.session, options.to, agent=options.agent, takeover=options.takeover)
    return CommandOutput(done, iter([f"{harmless(done.session_id)}: back at #{done.position}.", _undone_by(done)]))


async def _drop_summary(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    done = await sessions.drop_summary(options.session, agent=options.agent, takeover=options.takeover)
    return CommandOutput(done, iter([f"{harmless(done.session_id)}: the summary is dropped.", _undone_by(done)]))


def _undone_by(done: RewindReport) -> str:
    name = shlex.quote(harmless(done.session_id))
    return (
        f"Next: the session's next turn goes on from here; `repertory sessions rewind {name} {done.was}` undoes this."
    )


async def _redact(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    name = harmless(options.session)
    await _ask(options, f"Erase the text of message #{options.seq} of {name}? This cannot be undone.")
    async with _memories(options) as memory:
        done = await sessions.redact(
            options.session, options.seq, options.text, agent=options.agent, takeover=options.takeover, memory=memory
        )
    return CommandOutput(done, _redaction_lines(done))


async def _redact_text(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    text = sys.stdin.read().rstrip("\n") if options.text == "-" else options.text
    await _ask(options, f"Erase that text everywhere in {harmless(options.session)}? This cannot be undone.")
    async with _memories(options) as memory:
        done = await sessions.redact_text(
            options.session, text, options.instead, agent=options.agent, takeover=options.takeover, memory=memory
        )
    return CommandOutput(done, _text_redaction_lines(done))


@asynccontextmanager
async def _memories(options: argparse.Namespace) -> AsyncGenerator[Sequence[object]]:
    if options.memory is None:
        yield ()
        return
    store = SQLiteMemoryStore(options.memory)
    try:
        yield [store]
    finally:
        await store.aclose()


async def _delete(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    await _ask(options, f"Delete {harmless(options.session)}? This cannot be undone.")
    proof = await sessions.delete(options.session, takeover=options.takeover)
    return CommandOutput(proof, _proof_lines([proof]))


async def _rotate_key(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    done = await sessions.rotate_key(options.session, takeover=options.takeover)
    text = f"{harmless(done.session_id)}: sealed with key {done.key_id} from now on; its keys before are kept."
    return CommandOutput(done, iter([text]))


async def _erase_key(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    name = harmless(options.session)
    await _ask(options, f"Erase the key of {name}, and with it every copy that there is? This cannot be undone.")
    done = await sessions.erase_key(options.session, takeover=options.takeover)
    text = f"{name}: the key is erased, and nobody can read it; `delete` removes what is left."
    return CommandOutput(done, iter([text]))


async def _expire(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    planned = await sessions.expire(options.age, dry_run=True)
    if options.dry_run or not planned.expired:
        return CommandOutput(planned, _expiry_lines(planned))
    await _ask(options, f"Delete {len(planned.expired)} sessions? This cannot be undone.")
    with progress_on_terminal(options) as progress:
        done = await sessions.expire(options.age, progress=progress)
    return CommandOutput(done, _expiry_lines(done))


async def _doctor(options: argparse.Namespace, sessions: Sessions) -> CommandOutput:
    with progress_on_terminal(options) as progress:
        report = await sessions.doctor(repair=options.repair, progress=progress)
    if options.repair:
        advice = "Next: `repertory sessions doctor` says whether all is sound now."
    else:
        advice = "Next: copy this place; then --repair moves what is damaged aside, so that the rest opens."
    more = [advice] if any(each.problems for each in report.sessions) else []
    return CommandOutput(report, chain(listing.health_lines(report), more), 0 if report.ok else 1)


def _prune_lines(done: PruneReport) -> Iterator[str]:
    would = "would be erased" if done.dry_run else "erased"
    if done.marks:
        yield f"Marks {would}: {harmless(', '.join(done.marks))}."
    if done.messages:
        yield f"Messages that rewinds left behind {would}: {', '.join(f'#{seq}' for seq in done.messages)}."
    yield f"Records {would}: {len(done.erased)}, of {done.bytes} bytes."


def _redaction_lines(done: RedactionReport) -> Iterator[str]:
    yield f"Message #{done.seq} was replaced; records erased: {len(done.erased)}."
    for each in done.left:
        where = f"#{each.seq} ({each.what})" if each.seq else each.what
        yield f"The same text is still in agent {harmless(each.agent_id)}: {harmless(where)}."
    if done.source is not None:
        yield f"The message was copied from #{done.source_seq} of {harmless(done.source)}: redact it there as well."
    yield from _memory_lines(done.memories)
    for name in done.quarantined:
        yield f"The text may still be in the damaged data set aside in {harmless(name)}."


def _text_redaction_lines(done: TextRedactionReport) -> Iterator[str]:
    if not done.agents:
        yield "The text occurs nowhere in the session."
    for agent_id, agent in done.agents.items():
        yield (f"{harmless(agent_id)}: messages replaced: {len(agent.messages)}, records erased: {len(agent.erased)}.")
    for each in done.left:
        yield f"The text is still a name in agent {harmless(each.agent_id)}: #{each.seq} ({each.what})."
    for token in done.posted:
        yield f"The accepted call {harmless(token)} still contains it: redact again once it is made."
    yield from _memory_lines(done.memories)
    for name in done.quarantined:
        yield f"The text may still be in the damaged data set aside in {harmless(name)}."


def _memory_lines(memories: ForgottenMemories) -> Iterator[str]:
    for name, count in memories.forgotten.items():
        yield f"Memories erased in {harmless(name)}: {count}."
    for name in memories.left:
        yield f"The memory store {harmless(name)} was given the text: erase it there as well."


def _proof_lines(proofs: Sequence[DeletionProof]) -> Iterator[str]:
    for proof in proofs:
        yield f"{harmless(proof.session_id)}: deleted, {listing.local_time(proof.deleted_at)}"
        for agent_id, agent in proof.agents.items():
            yield f"    {harmless(agent_id)}: {agent.rows} records, the last one linked {agent.link or '(damaged)'}"
        yield f"    checked to be gone: {harmless(', '.join(proof.looked_for))}"
        yield from (
            f"    may still be in the damaged data set aside in {harmless(name)}" for name in proof.corrupt_files
        )


def _expiry_lines(report: ExpiryReport) -> Iterator[str]:
    if report.dry_run:
        yield from (f"{harmless(session_id)}: would be deleted" for session_id in report.expired)
    yield from _proof_lines(report.proofs)
    yield from (f"{harmless(skipped.session_id)}: kept, {harmless(skipped.why)}" for skipped in report.skipped)
    if not report.expired:
        yield "No session has expired."


def _copied(done: CopyReport, how: str) -> str:
    agents = ", ".join(f"{harmless(agent)} up to #{seq}" for agent, seq in done.agents.items())
    return f"{harmless(done.session_id)}: {done.added} records {how}, {agents}"


def _only(session: StoredSession) -> StoredAgent:
    """The only agent beside its subagents, or the one with the id `default`."""
    agents = {name: session.agents[name] for name in without_subagents(session.agents)}
    if len(agents) == 1:
        return next(iter(agents.values()))
    if "default" not in agents:
        raise NotFound(
            "the session has several agents: name one with --agent", session=session.session_id, agents=sorted(agents)
        )
    return agents["default"]


async def _ask(options: argparse.Namespace, question: str) -> None:
    """Ask the user, unless `--yes` was given. Errors: `Declined` for any answer but yes."""
    if options.yes:
        return
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    answer = await run_foreign(sys.stdin.readline)
    if not is_yes(answer):
        raise Declined


async def _write_out(piece: bytes) -> None:
    await run_in_thread(partial(sys.stdout.buffer.write, piece))


def _position(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _age_s(text: str) -> float:
    found = _AGE.fullmatch(text)
    if found is None:
        raise Invalid("an age is a number of seconds, or such as 45m, 12h, 30d, 8w", got=text)
    return float(found[1]) * _UNITS_S[found[2] or "s"]
