"""Reading around damage in the documents of a session.

What cannot be proved any more is taken for what somebody else has written: the messages that can be read, as they
stand, and the agent's document. So nothing is lost that a person could read in the tree, but for what only rows said.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from repertory.backends.mending_ports import Damage
from repertory.backends.sessions.message_tree_journal import mended_rows
from repertory.backends.sessions.message_tree_names import SessionNames
from repertory.backends.sessions.message_tree_reading import JournalPlace, read_agent_file, read_journal, side_by_side
from repertory.backends.sessions.message_tree_runs import salvaged_run_rows, seen_run_rows
from repertory.core.message_tree.assembly import Assembled, Source
from repertory.core.message_tree.documents import Read, read_message
from repertory.core.message_tree.opening import open_agent
from repertory.core.message_tree.run_file import read_run_file
from repertory.core.message_tree.spelling import parsed
from repertory.core.orchestration.journals import orchestrator_in
from repertory.errors import Corrupt, Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from repertory.backends.ports import ObjectStore
    from repertory.core.journal.appender import Entropy
    from repertory.core.journal.rows import Row

_OURS = ("session.json", "repertory.json")


async def salvage_agent(
    place: JournalPlace, wall: Callable[[], float], entropy: Entropy
) -> tuple[Sequence[Row], Sequence[Damage]]:
    """Every row that can be proved or, when some cannot, new ones for all that can be read; and what is wrong."""
    if place.names.orchestrator:
        return await _salvage_orchestrator(place, wall, entropy)
    try:
        return await mended_rows(place, wall, entropy)
    except Corrupt as error:
        damages = [Damage(where=place.names.folder, what=str(error))]
    documents = await _messages(place)
    for source, read in documents.items():
        if read.message is None:
            damages.append(Damage(where=place.names.key(source), what=read.fault or "it says nothing"))
    said = [(source.number or 0, read) for source, read in sorted(documents.items()) if read.message is not None]
    agent, _ = await read_agent_file(place)
    theirs = replace(agent, foreign=True) if agent is not None else None
    names, numbers = (place.session_id, place.agent_id), [number for number, _ in said]
    opened = open_agent(names, Assembled(added=said), numbers, theirs, wall(), entropy)
    return opened.made, damages


async def examine_agent(place: JournalPlace) -> Sequence[Damage]:
    """What is wrong with the documents of a journal, but for what reading it says anyway."""
    try:
        reading = await read_journal(place, whole=True)
    except Corrupt:
        return ()
    damages = list(reading.damages)
    if reading.document is not None and not place.names.orchestrator and reading.agent is None:
        damages.append(Damage(where=place.names.agent, what="it cannot be read, or is not as it was written"))
    if reading.document is not None and place.names.orchestrator:
        try:
            read_run_file(reading.document.body, orchestrator_in(place.agent_id) or "")
        except ValueError as error:
            damages.append(Damage(where=place.names.agent, what=str(error)))
    return damages


async def examine_session(objects: ObjectStore, names: SessionNames) -> list[Damage]:
    """What is wrong with the document that says which session it is."""
    try:
        told = parsed((await objects.get(names.session)).body).get("session_id")
    except NotFound:
        return [Damage(where=names.session, what="it is lost")]
    except (ValueError, Invalid) as error:
        return [Damage(where=names.session, what=str(error) or "it is empty")]
    return [] if told == names.session_id else [Damage(where=names.session, what=f"it names another session: {told!r}")]


def strays_in(folder: str, keys: Sequence[str]) -> list[str]:
    """The keys in a session's folder that are no part of the layout."""
    known = {f"{folder}/{name}" for name in _OURS}
    for names in SessionNames.journals_in(keys):
        known |= {names.agent, names.placeholder, *map(names.key, names.sources(keys))}
        known |= {key for key in keys if key.startswith(names.unreadable)}
    return [key for key in keys if key not in known]


async def _salvage_orchestrator(
    place: JournalPlace, wall: Callable[[], float], entropy: Entropy
) -> tuple[Sequence[Row], Sequence[Damage]]:
    try:
        return await seen_run_rows(place, wall, entropy, whole=True), ()
    except Corrupt as error:
        damages = [Damage(where=place.names.folder, what=str(error))]
    with suppress(Corrupt, NotFound):
        return await salvaged_run_rows(place, wall, entropy), damages
    return (), damages


async def _messages(place: JournalPlace) -> dict[Source, Read]:
    """Every document of a message, whether it can be read or not."""
    documents: dict[Source, Read] = {}

    async def read(source: Source) -> None:
        try:
            documents[source] = read_message((await place.objects.get(place.names.key(source))).body)
        except NotFound:
            return
        except Invalid as error:  # a link, or worse
            documents[source] = Read(fault=str(error))

    keys = [info.key for info in await place.objects.list(place.names.folder)]
    sources = [source for source in place.names.sources(keys) if source.number is not None]
    await side_by_side([partial(read, source) for source in sources])
    return documents
