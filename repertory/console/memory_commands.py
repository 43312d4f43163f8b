"""`repertory memory ...`: agents' memory stores from the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from repertory.actors.memory.store import ForgetMemories, ask_store
from repertory.app.memory.memory_manager import MemoryManager, reached
from repertory.app.memory.sqlite import SQLiteMemoryStore
from repertory.backends.worker_threads import run_in_thread
from repertory.console import listing
from repertory.console.listing import shortened
from repertory.console.places import add_location_option, existing_location, with_examples
from repertory.console.session_commands import CommandOutput, known_sessions
from repertory.core.memory.options import MemoryAddOptions
from repertory.errors import Invalid, NotFound
from repertory.operations.sessions import Sessions
from repertory.service.configuration.sources import find_modules_in, load_named
from repertory.service.process.terminal_text import harmless

if TYPE_CHECKING:
    from repertory.core.memory.options import MemoryEntry
    from repertory.operations.marking import StoredDeadLetter

_Run = Callable[[argparse.Namespace], Awaitable[CommandOutput]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLine:
    """One memory store in a listing."""

    name: str
    kind: str
    description: str | None
    writable: bool
    extracts: bool


def add_memory_commands(parser: argparse.ArgumentParser) -> None:
    """Every command, with its options and its help."""
    commands = parser.add_subparsers(dest="action", required=True)

    def add(name: str, run: _Run, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, **with_examples(text, _EXAMPLES[name], "memory"))
        command.set_defaults(run=run)
        command.add_argument("--json", action="store_true", help="print the report as JSON")
        return command

    search = add("search", _search, "find memories about the given words, the best first")
    search.add_argument("words", nargs="+", metavar="WORD")
    search.add_argument(
        "--max", type=int, default=10, metavar="N", help="the most memories of each store (default: 10)"
    )
    adding = add("add", _add, "store a memory")
    adding.add_argument("text", metavar="TEXT")
    forget = add("forget", _forget, "erase a memory, and what was derived from it")
    forget.add_argument("id", metavar="ID", help="the id, from the metadata in `search --json`")
    stores = add("stores", _stores, "list the memory stores, and what each is for")
    for command in (search, adding, forget, stores):
        _add_manager(command)
    for command in (search, adding, forget):
        command.add_argument("--store", metavar="NAME", help="use this store only")
    dead_letters = add("dead-letters", _dead_letters, "list what stores have refused for good")
    dead_letters.add_argument("session", nargs="?", metavar="SESSION", help="list those of this session only")
    replay = add("replay", _replay, "try dead letters again when an agent next opens the session")
    replay.add_argument("session", metavar="SESSION")
    replay.add_argument("--store", metavar="NAME", help="only those of this memory store")
    replay.add_argument("--agent", metavar="ID", help="the agent (default: the only one, or `default`)")
    replay.add_argument("--takeover", action="store_true", help="take the session from its live owner")
    for command in (dead_letters, replay):
        add_location_option(command)


_EXAMPLES = {
    "search": "search rye bread\nsearch rye bread --manager shop.agents:memory",
    "add": "add 'We open at six.'",
    "forget": "forget 0b5e2f6a",
    "stores": "stores --manager shop.agents:memory",
    "dead-letters": "dead-letters\ndead-letters groceries --at agents.db",
    "replay": "replay groceries",
}


def run_memory_command(options: argparse.Namespace) -> int:
    """Run one command. Returns the exit code: 0 done; 1 it found nothing."""
    if "manager" in options:
        options.opened = _manager(options)
    outcome: CommandOutput = anyio.run(options.run, options)
    if options.json:
        sys.stdout.write(f"{listing.report_json(outcome.report)}\n")
    else:
        sys.stdout.writelines(f"{harmless(line)}\n" for line in outcome.lines)
    return outcome.code


def _add_manager(command: argparse.ArgumentParser) -> None:
    where = command.add_mutually_exclusive_group()
    where.add_argument("--memory", metavar="FILE", help="a memory database (default: ~/.repertory/memory.db)")
    where.add_argument(
        "--manager", metavar="MODULE:NAME", help="a MemoryManager of your own, such as shop.agents:memory"
    )
    command.add_argument("--scope", metavar="NAME", help="whose memories, in a memory database")


def _manager(options: argparse.Namespace) -> MemoryManager:
    if options.memory is not None and options.action != "add" and not Path(options.memory).exists():
        raise NotFound("there are no memories: look at the name of the file", path=options.memory)
    if options.manager is None:
        return MemoryManager(stores=[SQLiteMemoryStore(options.memory, scope=options.scope)])
    find_modules_in(Path.cwd())
    found = load_named(options.manager)
    if not isinstance(found, MemoryManager):
        raise Invalid(
            "--manager names an object that is no MemoryManager", manager=options.manager, got=type(found).__name__
        )
    return found


async def _search(options: argparse.Namespace) -> CommandOutput:
    stores = options.opened.in_scope(_chosen(options))
    found = await options.opened.search_stores(" ".join(options.words), stores, options.max)
    return CommandOutput(found, _entry_lines(found), 0 if found else 1)


async def _add(options: argparse.Namespace) -> CommandOutput:
    await options.opened.add(options.text, MemoryAddOptions(stores=_chosen(options)))
    return CommandOutput({"added": 1}, iter(["Remembered."]))


async def _forget(options: argparse.Namespace) -> CommandOutput:
    chosen = _chosen(options)
    stores = [each for each in options.opened.managed if chosen is None or each.name in chosen]
    able = [each.client for each in stores if each.client.forgets]
    if not able:
        raise Invalid("none of these stores can erase memories", stores=[each.name for each in stores])
    async with reached(able) as actors:
        count = sum([await ask_store(actor, ForgetMemories(given=(options.id,))) for actor in actors.values()])
    line = f"Memories erased: {count}." if count else "No memory has this id."
    return CommandOutput({"erased": count}, iter([line]), 0 if count else 1)


async def _stores(options: argparse.Namespace) -> CommandOutput:
    lines = [
        StoreLine(
            name=each.name,
            kind=type(each.client.store).__name__,
            description=each.description,
            writable=each.writable,
            extracts=each.extraction is not None,
        )
        for each in options.opened.managed
    ]
    return CommandOutput(lines, _store_lines(lines))


async def _dead_letters(options: argparse.Namespace) -> CommandOutput:
    location = await run_in_thread(partial(existing_location, options))
    found = await Sessions(location).dead_letters(options.session)
    return CommandOutput(found, _dead_letter_lines(found))


async def _replay(options: argparse.Namespace) -> CommandOutput:
    sessions = Sessions(await run_in_thread(partial(existing_location, options)))
    async with known_sessions(sessions):
        done = await sessions.replay(options.session, options.store, agent=options.agent, takeover=options.takeover)
    count = sum(done.dead_letters.values())
    line = (
        f"Dead letters to be tried again when an agent opens the session: {count}."
        if count
        else "There are no dead letters."
    )
    return CommandOutput(done, iter([line]), 0 if count else 1)


def _chosen(options: argparse.Namespace) -> list[str] | None:
    return None if options.store is None else [options.store]


def _entry_lines(found: Sequence[MemoryEntry]) -> Iterator[str]:
    if not found:
        yield "No memory was found."
    for entry in found:
        named = (entry.metadata or {}).get("id")
        yield f"[{entry.store_name}{'' if named is None else f' {named}'}] {harmless(entry.content)}"


def _store_lines(lines: Sequence[StoreLine]) -> Iterator[str]:
    for line in lines:
        able = ["searched", *(["written"] if line.writable else []), *(["extracted into"] if line.extracts else [])]
        yield f"{line.name} ({line.kind}): {', '.join(able)}. {line.description or ''}".rstrip()


def _dead_letter_lines(found: Sequence[StoredDeadLetter]) -> Iterator[str]:
    if not found:
        yield "No dead letters."
    for stored in found:
        letter = stored.dead_letter
        when = datetime.fromtimestamp(letter.at, UTC).strftime("%Y-%m-%d %H:%M")
        what = f"messages {letter.seq_range[0]}-{letter.seq_range[1]}"
        if letter.write is not None:
            what = f'"{shortened(letter.write.content)}"'
        where = f"{stored.session_id}/{stored.agent_id} -> {stored.store}"
        yield f"{where}: {what} ({when} UTC: {shortened(letter.why, 200)})"
