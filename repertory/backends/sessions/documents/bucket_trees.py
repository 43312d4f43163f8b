"""The trees of documents in a bucket, beside the journals of their sessions.

What stands in a tree is noted in the heads and segments of the journal (`_StoredMark`), since every put counts, and
these go out with commits anyway. Documents go out beside the commit whose rows they show, so a mark knows too little of
the last ones, and the next owner reads those. Whether another program has written to a tree is seen by one listing
when a session is opened, and by the next message's number when it is taken back.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from itertools import takewhile
from typing import TypeAlias

import anyio
import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from repertory.backends.ports import Condition, Create, NoObject, ObjectStore, Overwrite, StoredObject, Update
from repertory.backends.sessions.documents.reading import AgentNames, SessionNames
from repertory.backends.sessions.documents.trees import DocumentTree, OpenTrees, check_name, digest_in_mark
from repertory.backends.sessions.requests import side_by_side
from repertory.core.journal.fold import Fold
from repertory.core.journal.records import View
from repertory.core.journal.restore import Entropy, restore
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.message_tree.agent_state import record_in
from repertory.core.message_tree.documents import (
    manager_named,
    read_agent,
    session_document,
)
from repertory.core.message_tree.intake import (
    ComparedTree,
    FoundDocument,
    TakenIn,
    TreeFound,
    follow_up,
    found_document,
    pending_changes,
    take_in,
)
from repertory.core.message_tree.opening import due_after
from repertory.core.message_tree.projection import (
    AgentTree,
    NewDocument,
    ReplacedMessage,
    TreeMark,
    pairs_of,
)
from repertory.core.message_tree.run_tree import RunTree
from repertory.core.messages import tool_uses
from repertory.core.orchestration.journals import orchestrator_in
from repertory.errors import (
    AlreadyExists,
    CorruptJournal,
    Invalid,
    NotFound,
    PreconditionFailed,
    RepertoryError,
    StoreUnavailable,
)
from repertory.logs import WARNING, note

_log = logging.getLogger("repertory.sessions")
_TRIES = 100
_WATCHED = 48
"""The number of last documents that are compared by their versions when a session is opened."""
_LISTED = 900
"""So long trees are listed whole, which is one request."""
_VERSION = 4
"""Characters of base64 for each of them."""

LoadWindow: TypeAlias = "Callable[[], Awaitable[Sequence[Row]]]"
"""Reads the rows that opening a journal needs."""


class _StoredMark(Struct, kw_only=True, omit_defaults=True):
    """The state of a tree, as the heads and segments of the journal have it."""

    mark: TreeMark
    agent: str | None = None
    """The version of the agent's or orchestrator's document; None without one."""
    next_agent: str = ""
    """The digest of that document as it is written beside the commit of this head; empty if it is not."""
    watched: str = ""
    """Short digests of the versions of the last documents of messages."""


class _Unconfirmed(Struct):
    """Documents that went out beside a commit that has failed, and that may still stand in a tree, or arrive in it: the
    owner takes them for its own, not for another program's.
    """

    messages: dict[str, int] = field(default_factory=dict[str, int])
    """The numbers of documents of messages, by their digests."""
    agents: set[str] = field(default_factory=set[str])
    """Digests and versions of the agent's or orchestrator's document."""

    def has(self, document: StoredObject) -> bool:
        return document.version in self.agents or digest_in_mark(document.body) in self.agents


class BucketTree(DocumentTree):
    """The documents of one agent or orchestrator, as they stand and as its journal wants them."""

    def __init__(self, trees: BucketTrees, names: AgentNames, of: tuple[str, str], mark: str | None) -> None:
        """`mark`: as `stored_mark` gave it; None without one."""
        super().__init__(names, of, trees.wall)
        self._trees = trees
        self._objects = trees.objects
        self._known = _StoredMark(mark=TreeMark())
        # A mark that cannot be read is none: everything is compared.
        with suppress(ValueError):
            self._known = msgspec.json.decode(mark or "", type=_StoredMark)
        self._others = False
        """True if another program is known to have written since the last look."""
        self._committed = 0
        """The last row that is known to be committed."""
        self._before: _StoredMark | None = None
        """The state before the rows that are not known to be committed; None without such rows."""
        self._early: dict[str, tuple[int, int]] = {}
        """The digests of documents that went out beside a commit, with their rows and numbers."""
        self._is_next = False
        """True if the agent's or orchestrator's document is the one that went out beside the last commit."""
        self._sent = ("", "")
        """The digests of the agent's or orchestrator's document, as it was put the last two times; that may have
        failed.
        """
        self.strays: Sequence[str] = ()
        """The keys of documents of a commit that was not stored, as the last look has found them."""
        self._lock = anyio.Lock()

    waits_for_tools = False
    """True if the last message that was followed waits for results of tools."""

    @property
    def mark(self) -> TreeMark:
        return self._known.mark

    @property
    @abstractmethod
    def last_seq(self) -> int:
        """The last row that was followed."""

    @abstractmethod
    async def is_unchanged(self, *, quick: bool = False) -> bool:
        """False if another program has written to the tree since the last look, as far as its own document and the next
        message tell; with `quick`, as far as one request tells.
        """

    @abstractmethod
    async def look(self, rows: Sequence[Row]) -> bool:
        """True if other programs have written since the mark was made, or are not known not to have. `rows`: those that
        opening the journal needs.
        """

    @abstractmethod
    async def take_in(self, rows: Sequence[Row], now: float, entropy: Entropy) -> ComparedTree:
        """Compare the tree, as `look` has found it, with a whole journal. Writes nothing. Errors: `CorruptJournal`, and
        those of the objects.
        """

    @abstractmethod
    def begin(self, rows: Sequence[Row]) -> None:
        """Go on from a journal that has taken in what others wrote. `rows`: those that opening it needs."""

    def follow(self, rows: Sequence[Row], *, committed: bool) -> None:
        """Plan the documents of rows that are committed, or are about to be. Until they are, the mark that is stored
        knows nothing of them: if they are refused, other messages get their places.
        """
        # A copy, since planning changes the mark in place.
        if not committed and self._before is None:
            self._before = replace(self._known, mark=replace(self.mark, runs=[*self.mark.runs]))
        self._plan(rows)
        if committed:
            self.confirm()

    def confirm(self) -> None:
        """Note that all rows that were followed are committed."""
        self._committed, self._before = self.last_seq, None

    @abstractmethod
    def _plan(self, rows: Sequence[Row]) -> None: ...

    async def write(self, window: LoadWindow) -> None:
        """Write everything that is due. Errors: those of the objects; then the rest is still due."""
        async with self._lock:
            await self._write(window)

    @abstractmethod
    async def _write(self, window: LoadWindow) -> None: ...

    async def take_back(self, stored: Callable[[int], Awaitable[Collection[str | None]]]) -> None:
        """Remove the documents of rows that are not stored; if that fails, the next opening does. `stored` reads the
        tracking ids of messages behind a row. The tree must not be used any more. Raises nothing.
        """
        async with self._lock:
            unconfirmed = self._trees.unconfirmed.setdefault(self.of, _Unconfirmed())
            unconfirmed.messages |= {
                digest: number for digest, (seq, number) in self._early.items() if seq > self._committed
            }
            # Both the last two bodies and the version: an answer may have been lost for either.
            unconfirmed.agents |= {*self._sent, self._known.agent or ""}
            self._known = self._before or self._known
            with suppress(RepertoryError):
                await self.remove_unconfirmed(await stored(self._committed) if unconfirmed.messages else ())

    async def remove_unconfirmed(self, stored: Collection[str | None] = ()) -> None:
        """Remove documents of a commit that has failed, but for those of messages with the ids in `stored`: an earlier
        try may have arrived, and another owner may have found them. If it arrives later, they are written anew. Errors:
        those of the objects.
        """
        unconfirmed = self._trees.unconfirmed.get(self.of, _Unconfirmed())
        known = {number for _, number in pairs_of(self.mark.runs)} if unconfirmed.messages else ()
        for digest, number in unconfirmed.messages.items():
            with suppress(NotFound, NoObject):  # A link that a person has put there is not ours.
                body = (await self._objects.get(self._names.key(number))).body
                stays = number in known or found_document(body).tracking_id in stored
                # By digest, and not by number alone: another program may have written its message there by now. The
                # port has no conditional delete, so one that is written between these two requests is lost.
                if not stays and digest_in_mark(body) == digest:
                    await self._objects.delete(self._names.key(number))

    def stored_mark(self) -> str:
        """The state of the tree, for the next head or segment of the journal."""
        # The head that commits rows must not claim their documents, which may not arrive. Only the digest of the
        # agent's document goes ahead, by which the next owner knows it for ours.
        known = self._known if self._before is None else replace(self._before, next_agent=self._known.next_agent)
        return msgspec.json.encode(known).decode()

    async def _read_document(self) -> StoredObject | None:
        """The agent's or orchestrator's document; None without one."""
        try:
            return await self._objects.get(self._names.agent)
        except NotFound:
            return None

    async def _has_own_document(self) -> bool:
        """True if the agent's or orchestrator's document is the one that was last read or written."""
        found = await self._read_document()
        if found is None:
            return self._known.agent is None
        # The second: a put of ours whose answer was lost.
        return found.version == self._known.agent or digest_in_mark(found.body) == self._sent[-1]

    def _is_ours(self, document: StoredObject | None) -> bool:
        """True if the last owner has written this document, or there was none."""
        if document is None or document.version == self._known.agent:
            return (document is None) == (self._known.agent is None)
        if self._is_unconfirmed(document):
            self._known.agent, self._known.next_agent = document.version, digest_in_mark(document.body)
            return True  # It is written anew.
        if self._known.next_agent != digest_in_mark(document.body):
            return False
        self._known.agent, self._known.next_agent, self._is_next = document.version, "", True
        return True

    def _is_unconfirmed(self, document: StoredObject | None) -> bool:
        unconfirmed = self._trees.unconfirmed.get(self.of)
        return document is not None and unconfirmed is not None and unconfirmed.has(document)

    async def _put_document(self, body: bytes) -> bool:
        """Write the agent's or orchestrator's document, unless another program has written it since the last look."""
        self._sent = (self._sent[-1], digest_in_mark(body))
        # Twice: once as known, and once under the version that an unanswered put of ours has left.
        for _ in range(2):
            known = self._known.agent
            condition: Condition = Create() if known is None else Update(known)
            try:
                self._known.agent = await self._objects.put(self._names.agent, body, condition)
            except (AlreadyExists, PreconditionFailed):
                found = await self._read_document()
                if found is None or digest_in_mark(found.body) not in self._sent:
                    break
                self._known.agent = found.version  # An earlier put of ours, whose answer was lost.
            else:
                self._known.next_agent = ""
                return True
        self._others, self._known.next_agent = True, ""
        return False

    async def _set_aside(self) -> None:
        """Move the agent's or orchestrator's document away, if it cannot be read."""
        if self._unreadable:
            await self._move_aside(self._names.agent)
            self._known.agent = None
        self._unreadable = False

    async def _move_aside(self, key: str) -> None:
        """Move a document away that cannot be read, and is written anew."""
        with suppress(NotFound):
            found = await self._objects.get(key)
            to = f"{self._names.unreadable}{key.rpartition('/')[2]}"
            await self._objects.put(to, found.body, Overwrite())
            await self._objects.delete(key)
            note(_log, WARNING, "a document that cannot be read was put aside", file=key)


class AgentInBucket(BucketTree):
    """The documents of an agent."""

    def __init__(self, trees: BucketTrees, names: AgentNames, of: tuple[str, str], mark: str | None) -> None:
        super().__init__(trees, names, of, mark)
        self._state = AgentTree(agent_id=of[1], mark=self.mark, fold=Fold())
        self._pending: list[NewDocument | ReplacedMessage] = []
        self._taken: TakenIn | None = None
        self._found: dict[int, str | None] = {}
        """The version of each document of a message, as the last listing gave them."""
        self._document: StoredObject | None = None
        self._theirs = False
        """True if another program has written the agent's document."""
        self._first = 0
        """The number of the first document that was listed."""
        self._changed: list[int] = []
        """The numbers of documents that another program has written anew."""
        self._body = b""
        """The agent's document that is written next."""

    @property
    def last_seq(self) -> int:
        return self._state.last_seq

    @property
    def is_behind(self) -> bool:
        mends = self._unreadable or (self._taken is not None and bool(self._taken.compared.again))
        return mends or bool(self._pending) or self._state.is_behind

    @property
    def waits_for_tools(self) -> bool:
        fold = self._state.fold
        return fold is not None and fold.last_message is not None and any(tool_uses(fold.last_message))

    async def is_unchanged(self, *, quick: bool = False) -> bool:
        async with self._lock:
            if self._others or not (quick or await self._has_own_document()):
                return False
            number = self.mark.next_number
            try:
                found = await self._objects.get(self._names.key(number))
            except (NotFound, NoObject):  # A link is no message, and ours gets the next number.
                return True
            # A put of ours may have failed, and yet have arrived.
            next_one = self._pending[0] if self._pending else None
            return isinstance(next_one, NewDocument) and found.body == next_one.body(number)

    # Opening.

    async def look(self, rows: Sequence[Row]) -> bool:
        prefixes = self._last_prefixes()
        _, self._document = await side_by_side([partial(self._list, prefixes), self._read_document])
        document = self._document
        self._theirs = document is not None and not self._is_ours(document)
        self._unreadable = document is not None and read_agent(document.body) is None
        check_name(self._names, self.of[1], None if document is None else document.body, "agent_id")
        if not self.mark.seq:
            return bool(self._found) or document is not None or bool(rows)
        gone = document is None and self._known.agent is not None
        if not (await self._have_changed(rows) or self._theirs or self._unreadable or gone):
            return False
        # Something has changed, so all is compared, not the last documents alone.
        await self._list([self._names.folder])
        return True

    async def _have_changed(self, rows: Sequence[Row]) -> bool:
        """True if documents of messages are not as the mark says, and as the rows behind it want them."""
        mark = self.mark
        known = {number for _, number in pairs_of(mark.runs)} | {*mark.unreadable} | mark.taken.keys()
        unreadable = [number for number in mark.unreadable if number in self._found]
        mended = await self._read_all(unreadable)
        removed = {number for number in known if number >= self._first} - self._found.keys()
        self._changed = self._edited()
        if removed or self._changed or any(document.fault is None for document in mended.values()):
            return True
        unknown = await self._read_all(sorted(self._found.keys() - known))
        pending = follow_up(mark, rows, unknown, self._wall())
        self._pending = pending or []
        return pending is None

    def _last_prefixes(self) -> list[str]:
        """The beginnings of the keys of the last documents, which cost less to list than all of a long tree."""
        last, folder = self.mark.last_numbers(_WATCHED), self._names.folder
        # Keys are listed by prefix, and numbers are not padded: message_123 is below "message_12".
        tens = range(last[0] // 10 if last else 0, self.mark.next_number // 10 + 1)
        # A list gives 1,000 keys, so a short tree is one request anyway. Many prefixes: the numbers lie far apart.
        if self.mark.messages <= _LISTED or len(tens) > _WATCHED:
            return [folder]
        return [f"{folder}messages/message_{ten}" for ten in tens]

    async def _list(self, prefixes: Sequence[str]) -> None:
        """Note the versions of the documents of messages: of all, or from the first one of the last ones on."""
        infos = [
            info
            for found in await side_by_side([partial(self._objects.list, each) for each in prefixes])
            for info in found
        ]
        self._first = 0 if len(prefixes) == 1 else self.mark.last_numbers(_WATCHED)[0]
        found = {number: info.version for info in infos for number in self._names.numbers([info.key])}
        self._found = {number: version for number, version in found.items() if number >= self._first}

    async def _read_all(self, numbers: Sequence[int]) -> dict[int, FoundDocument]:
        found: dict[int, FoundDocument] = {}

        async def read(number: int) -> None:
            try:
                found[number] = found_document((await self._objects.get(self._names.key(number))).body)
            except NotFound:
                self._found.pop(number, None)
            except Invalid as error:
                found[number] = FoundDocument(fault=str(error))

        await side_by_side([partial(read, number) for number in numbers])
        return found

    def _edited(self) -> list[int]:
        """The numbers of the last documents that have another version than before, or one that is not known."""
        last, known = self.mark.last_numbers(_WATCHED), self._known.watched
        before = [known[at : at + _VERSION] for at in range(0, len(known), _VERSION)]
        # The mark is older than the last documents: compare them all.
        if len(before) != len(last):
            return last
        versions = [self._found.get(number) for number in last]
        pairs = zip(last, versions, before, strict=True)
        return [number for number, version, short in pairs if version is None or _short(version) != short]

    async def take_in(self, rows: Sequence[Row], now: float, entropy: Entropy) -> ComparedTree:
        mark = self.mark
        known = {number for _, number in pairs_of(mark.runs)} - {*(self._changed if mark.seq else self._found)}
        read = await self._read_all(sorted(self._found.keys() - known))
        document = self._document
        agent = None if document is None else read_agent(document.body)
        found = TreeFound(
            present=self._found.keys(),
            read=read,
            agent=agent if self._theirs or not (self.mark.seq or self._is_unconfirmed(document)) else None,
            unordered=True,
        )
        since = self.mark.seq
        self._taken = taken = take_in(self.of, rows, self.mark, found, now, entropy)
        self._known.mark, self.strays = taken.mark, [self._names.key(number) for number in taken.strays]
        self._known.agent, self._known.next_agent = None if document is None else document.version, ""
        self._note_versions()
        self._pending = pending_changes(rows, since, taken, now)
        return taken.beside(rows)

    def begin(self, rows: Sequence[Row]) -> None:
        document, known, state = self._document, self._known, self._state
        agent = None if document is None else read_agent(document.body)
        since, last_seq = self.mark.seq, rows[-1].seq if rows else 0
        # It was to be written with the last commit, and was not; or that commit was not stored.
        stale = bool(known.next_agent) or document is None or (self._is_next and last_seq == since)
        known.agent, known.next_agent = None if document is None else document.version, ""
        if self._taken is None:
            manager = manager_named(View(), agent)
            new = [record_in(row) for row in rows if row.seq > since]
            stale = stale or any(
                any(due_after(each, asks=agent is not None and agent.asks, manager=manager)) for each in new
            )
            if not self._pending:
                self.mark.count += sum(row.kind == RecordKind.MESSAGE for row in rows if row.seq > since)
                self.mark.seq = last_seq
        try:
            state.begin(rows, restore(rows).fold, agent, self.mark)
        except CorruptJournal:  # Whoever opens the agent is told.
            state.agent, state.last_seq, state.fold = agent, last_seq, None
        state.view_due = state.view_due if self._taken is not None else stale and last_seq > 0
        for number in self.mark.unreadable:
            note(_log, WARNING, "a message cannot be read, and is left out", file=self._names.key(number))
        self._note_versions()
        self.confirm()
        self._document = None

    # Following.

    def _plan(self, rows: Sequence[Row]) -> None:
        self._pending += self._state.plan(rows, self._wall())
        self._prepare()

    def _prepare(self) -> None:
        """Make the agent's document, if it is due, before the head goes out that tells its digest."""
        if self._state.due and self._state.fold is not None and self._known.agent is not None:
            self._body = self._state.document(self._wall())
            self._known.next_agent = digest_in_mark(self._body)

    async def _write(self, window: LoadWindow) -> None:
        state = self._state
        # Beside its commit, the journal may or may not have the new rows; a fold of too few would make a wrong
        # document.
        if state.fold is None and is_up_to(rows := await window(), state.last_seq):
            state.refold(rows)
        await self._set_aside()
        await self._write_again()
        if self._known.agent is None and state.last_seq and state.fold is not None:
            await self._trees.begin(self.of[0])
            if await self._put_document(state.document(self._wall())):
                state.mark_stored()
        calls: list[Callable[[], Awaitable[None]]] = []
        if self._pending:
            calls.append(self._write_messages)
        if state.due and state.fold is not None:
            calls.append(self._write_agent)
        if calls:
            await side_by_side(calls)
        if not self._pending:
            self._note_written()

    async def _write_agent(self) -> None:
        state = self._state
        if not self._known.next_agent:
            self._body = state.document(self._wall())
        body, seq = self._body, state.last_seq
        # Rows that were followed during the put are not in this document.
        if await self._put_document(body) and state.last_seq == seq:
            state.mark_stored()

    async def _write_messages(self) -> None:
        while self._pending:
            change = self._pending[0]
            if isinstance(change, ReplacedMessage):
                await self._replace(change)
                self._pending.remove(change)
            else:
                await self._create([*takewhile(lambda each: isinstance(each, NewDocument), self._pending)])

    async def _create(self, new: Sequence[NewDocument | ReplacedMessage]) -> None:
        """Write the next documents, side by side. Where another program has taken a number, ours get the next ones."""
        waiting = [change for change in new if isinstance(change, NewDocument)]
        for _ in range(_TRIES):
            first, versions = self.mark.next_number, dict[int, str | None]()
            try:
                await side_by_side(
                    [partial(self._create_at, waiting, at, first, versions) for at in range(len(waiting))]
                )
            finally:
                # Side by side, later ones may have succeeded and an earlier one not. Only the unbroken beginning counts
                # as written.
                count = next((at for at in range(len(waiting)) if versions.get(at) is None), len(waiting))
                for at in range(count):
                    self._note_document(waiting[at], first + at, versions[at])
            if count == len(waiting):
                return
            self._others = True
            waiting = await self._move(
                waiting[count:], first + count, [versions[at] for at in sorted(versions)][count:]
            )
        raise StoreUnavailable("the numbers of messages are taken again and again", folder=self.name)

    async def _move(
        self, changes: Sequence[NewDocument], first: int, versions: Sequence[str | None]
    ) -> list[NewDocument]:
        """Keep the order of documents of which the first met a number that is taken: each of the others gives its
        number to the one before. Returns those that are left without one. `versions`: those of the numbers from `first`
        on; None for numbers that are taken.
        """
        waiting = [*changes]
        for number, version in enumerate(versions, first):
            if version is not None:
                with suppress(PreconditionFailed, NotFound):  # Another program has written over it.
                    body = self._early_body(waiting[0], number)
                    moved = await self._objects.put(self._names.key(number), body, Update(version))
                    self._note_document(waiting.pop(0), number, moved)
                    continue
            self._state.skip_number()
        return waiting

    def _early_body(self, change: NewDocument, number: int) -> bytes:
        """The document, which is noted before it goes out: it may arrive though the put fails."""
        body = change.body(number)
        # What is committed needs no taking back: this bounds it to one commit.
        self._early = {digest: early for digest, early in self._early.items() if early[0] > self._committed}
        if change.seq > self._committed:
            self._early[digest_in_mark(body)] = change.seq, number
        return body

    def _note_document(self, change: NewDocument, number: int, version: str | None) -> None:
        self._state.written(change, number)
        self._found[number] = version
        self._pending.remove(change)
        self._note_versions()

    async def _create_at(
        self, changes: Sequence[NewDocument], at: int, first: int, versions: dict[int, str | None]
    ) -> None:
        """Write one of these documents, whose numbers begin with `first`, and note its version. None if another program
        has taken the number.
        """
        key, body = self._names.key(first + at), self._early_body(changes[at], first + at)
        versions[at] = None
        try:
            versions[at] = await self._objects.put(key, body, Create())
        except AlreadyExists:
            # A link has the number as a document of another program has: it is not followed, and stays.
            with suppress(NotFound, NoObject):
                found = await self._objects.get(key)
                if found.body == body:  # An earlier put of ours, whose answer was lost.
                    versions[at] = found.version

    async def _write_again(self) -> None:
        """Write documents that were lost, and those of ours that cannot be read any more, of which a copy is kept."""
        again = {} if self._taken is None else self._taken.compared.again
        for number, document in again.items():
            await self._move_aside(self._names.key(number))
            self._found[number] = await self._objects.put(self._names.key(number), document.body(number), Overwrite())
        self._taken = None
        if again:
            self._note_versions()

    async def _replace(self, change: ReplacedMessage) -> None:
        """Write a message that stands for an erased one."""
        number = self.mark.number_of(change.index)
        if number is None:
            return
        with suppress(NotFound, NoObject):
            found = await self._objects.get(self._names.key(number))
            try:
                made = change.body(found.body)
            except ValueError:
                made = NewDocument(0, change.index, change.message, change.at, redacted=True).body(number)
            self._found[number] = await self._objects.put(self._names.key(number), made, Overwrite())
            self._note_versions()

    def _note_written(self) -> None:
        self.mark.seq, self.mark.count = self._state.last_seq, self._state.count

    def _note_versions(self) -> None:
        """Note the versions of the last documents, and forget those before them."""
        self._found = {number: self._found.get(number) for number in self.mark.last_numbers(_WATCHED)}
        self._known.watched = "".join(map(_short, self._found.values()))


class RunInBucket(BucketTree):
    """The document of an orchestrator."""

    def __init__(self, trees: BucketTrees, names: AgentNames, of: tuple[str, str], mark: str | None) -> None:
        super().__init__(trees, names, of, mark)
        self._run = RunTree(orchestrator_id=orchestrator_in(of[1]) or "")
        self._document: StoredObject | None = None

    @property
    def last_seq(self) -> int:
        return self._run.last_seq

    @property
    def is_behind(self) -> bool:
        return self._run.due

    async def is_unchanged(self, *, quick: bool = False) -> bool:
        del quick
        async with self._lock:
            return not self._others and await self._has_own_document()

    async def look(self, rows: Sequence[Row]) -> bool:
        self._document = document = await self._read_document()
        ours = self._is_ours(document)
        return not ours if self.mark.seq else document is not None or bool(rows)

    async def take_in(self, rows: Sequence[Row], now: float, entropy: Entropy) -> ComparedTree:
        document = self._document
        body = None if document is None else document.body
        check_name(self._names, self._run.orchestrator_id, body, "id")
        known = self.mark.seq or self._is_unconfirmed(document)
        theirs = None if known and self._is_ours(document) else body
        made = self._run.take_in(self.of, self._names.agent, rows, theirs, now, entropy)
        self._unreadable = made is None
        return ComparedTree(rows=[*rows, *(made or ())], made=made or (), erase=())

    def begin(self, rows: Sequence[Row]) -> None:
        document, self._document, run = self._document, None, self._run
        self._known.agent, self._known.next_agent = None if document is None else document.version, ""
        run.begin(rows)
        self.mark.seq = run.last_seq
        run.due = bool(rows) and (document is None or run.document() != document.body)
        self.confirm()

    def _plan(self, rows: Sequence[Row]) -> None:
        self._run.follow(rows)
        if self._run.fold is not None and self._run.due:
            self._known.next_agent = digest_in_mark(self._run.document())

    async def _write(self, window: LoadWindow) -> None:
        run = self._run
        if run.fold is None and is_up_to(rows := await window(), run.last_seq):
            run.fold = restore(rows).fold
        await self._set_aside()
        if self._known.agent is None:
            await self._trees.begin(self.of[0])
        seq = run.last_seq
        if run.due and run.fold is not None and await self._put_document(run.document()):
            run.due, self.mark.seq = run.last_seq > seq, seq


class BucketTrees(OpenTrees[BucketTree]):
    """The trees of all sessions in a bucket."""

    def __init__(self, objects: ObjectStore, wall: Callable[[], float], names: Callable[[str], SessionNames]) -> None:
        """`wall` gives epoch seconds. `names` gives the keys of a session."""
        super().__init__()
        self.names = names
        self.objects = objects
        self.wall = wall
        self.unconfirmed: dict[tuple[str, str], _Unconfirmed] = {}
        """Keyed by session and journal, until rows of that journal are committed again."""

    def tree(self, session_id: str, journal: str, mark: str | None) -> BucketTree:
        """A tree that is not looked at yet."""
        names = self.names(session_id).of_agent(journal)
        kind = AgentInBucket if orchestrator_in(journal) is None else RunInBucket
        return kind(self, names, (session_id, journal), mark)

    def marks(self, session_id: str, found: Mapping[str, str]) -> Mapping[str, str]:
        """The marks for a head of a session, which had these before."""
        return {**found, **{journal: tree.stored_mark() for journal, tree in self.of(session_id).items()}}

    async def begin(self, session_id: str) -> None:
        """Write the session's document, if it is missing. It comes before all else: other programs take a folder
        without one for a session that they cannot open.
        """
        with suppress(AlreadyExists):
            names = self.names(session_id)
            await self.objects.put(names.session, session_document(session_id, self.wall()), Create())

    async def write(self, tree: BucketTree, window: LoadWindow) -> None:
        """Write what is due. What cannot be written now is noted, and tried again later. Raises nothing."""
        try:
            await tree.write(window)
            self.note_success(tree)
        except RepertoryError as error:
            if self.note_failure(tree, error):
                note(_log, WARNING, "documents are not up to date", error, file=tree.name)


def _short(version: str | None) -> str:
    # Three bytes: the mark is put with each commit, and one edit in 16 million goes unnoticed until the next
    # comparison.
    return b64encode(blake2b(str(version).encode(), digest_size=3).digest()).decode()


def is_up_to(rows: Sequence[Row], seq: int) -> bool:
    """True if the last one of these rows has that number: the commit beside which documents are written has ended."""
    return bool(rows) and rows[-1].seq == seq
