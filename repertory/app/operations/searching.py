"""Looking for words in everything that was ever said. There is no index: whatever is searched is read whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from repertory.app.operations.lineages import ancestry_of
from repertory.app.operations.reading import aside, info_of, journal_of
from repertory.core.journal.leaves import texts_of
from repertory.core.journal.lineage import Lineage, before_fork
from repertory.core.journal.records import MessageAdded
from repertory.core.messages import Message
from repertory.errors import Corrupt, Gone, Invalid

if TYPE_CHECKING:
    from repertory.backends.ports import SessionStore
    from repertory.core.messages import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """A message that has all of the words."""

    session_id: str
    agent_id: str
    seq: int
    role: Role
    at: float
    """When it was said, in epoch seconds."""
    excerpt: str
    """About a line of it, around the first word, with single spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What was found, the most recently changed session first, each in the order of what was said."""

    hits: Sequence[SearchHit]
    more: bool
    """Whether the search ended since it had enough."""
    unreadable: Mapping[str, str] = field(default_factory=dict[str, str])
    """Session to what is wrong with it, for those that could not be searched, or not all of it."""


async def search(store: SessionStore, text: str, session_id: str | None, hits_max: int) -> SearchResult:
    """Every message that has all of the words, up to `hits_max`."""
    words = words_of(text)
    infos = await store.sessions() if session_id is None else [await info_of(store, session_id)]
    hits: list[SearchHit] = []
    unreadable: dict[str, str] = {}
    for info in infos:
        if info.damaged:
            unreadable[info.session_id] = "some of it is damaged"
        for agent_id in sorted(info.agents):
            try:
                journal = await journal_of(store, info.session_id, agent_id)
            except (Corrupt, Invalid) as error:  # damage may leave a name that none can have
                unreadable[info.session_id] = str(error)
                continue
            except Gone:  # deleted meanwhile
                continue
            # A search in everything finds what was said before a fork where it was said.
            lineage = [journal] if session_id is None else (await ancestry_of(store, journal)).lineage
            hits += await aside(partial(_hits, lineage, words), sum(len(each.rows) for each in lineage))
            if len(hits) > hits_max:
                return SearchResult(hits=hits[:hits_max], more=True, unreadable=unreadable)
    return SearchResult(hits=hits, more=False, unreadable=unreadable)


def _hits(lineage: Lineage, words: Sequence[str]) -> list[SearchHit]:
    journal = lineage[0]
    here = f"{journal.session_id}/{journal.agent_id}"
    said = [(each.source or here, each.seq, each.record) for each in before_fork(lineage) if each.source is not None]
    said += [(here, seq, record) for seq, record in journal.records if isinstance(record, MessageAdded)]
    found: list[SearchHit] = []
    for where, seq, record in said:
        excerpt = found_in(record.message, words)
        if excerpt is not None:
            session_id, _, agent_id = where.partition("/")
            found.append(
                SearchHit(
                    session_id=session_id,
                    agent_id=agent_id,
                    seq=seq,
                    role=record.message["role"],
                    at=record.at,
                    excerpt=excerpt,
                )
            )
    return found


EXCERPT_CHARACTERS = 120


def words_of(text: str) -> list[str]:
    """The words to look for. Errors: `Invalid` when there are none."""
    words = text.casefold().split()
    if not words:
        raise Invalid("say which words to look for", got=text)
    return words


def found_in(message: Message, words: Sequence[str]) -> str | None:
    """Part of what the message says, around the first word; None unless it has all of them, as parts of words or as
    whole ones, in any order, whatever their case.
    """
    text = " ".join(" ".join(texts_of(message)).split())
    folded = text.casefold()
    places = [folded.find(word) for word in words]
    return None if min(places) < 0 else _excerpt(text, min(places))


def _excerpt(text: str, place: int) -> str:
    """About a line around a place. Folding case may have moved it by a few characters."""
    start = max(0, min(place - EXCERPT_CHARACTERS // 3, len(text) - EXCERPT_CHARACTERS))
    end = min(len(text), start + EXCERPT_CHARACTERS)
    return f"{'...' if start else ''}{text[start:end]}{'...' if end < len(text) else ''}"
