"""The document of an orchestrator as a projection of its journal, and what is taken in of another program's. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from repertory.core.journal.codec import decode
from repertory.core.journal.fold import Fold
from repertory.core.journal.records import Branched
from repertory.core.journal.restore import Entropy, restore
from repertory.core.journal.rows import Row
from repertory.core.message_tree.documents import read_run_file, run_file
from repertory.core.message_tree.opening import open_run, run_of
from repertory.errors import Corrupt, CorruptJournal


class RunTree(Struct, kw_only=True):
    """An orchestrator's document, as the owner of its journal knows it."""

    orchestrator_id: str
    fold: Fold | None = field(default_factory=Fold)
    """None: must be folded from the store."""
    last_seq: int = 0
    due: bool = False
    """True if the document must be written."""

    def begin(self, rows: Sequence[Row]) -> None:
        """Start from a journal. `rows`: those that opening it needs."""
        self.fold = restore(rows).fold
        self.last_seq = self.fold.last_seq

    def follow(self, rows: Sequence[Row]) -> None:
        """Fold the rows after the last one."""
        for row in rows:
            record = None if row.erased else decode(row.kind, row.version, row.body)
            if record is None or isinstance(record, Branched):
                self.fold = None  # Folding it needs more than is known here.
            elif self.fold is not None:
                self.fold.apply(row.seq, record)
            self.last_seq, self.due = row.seq, True

    def document(self) -> bytes:
        """The document as of now. Needs `fold`."""
        assert self.fold is not None
        return run_file(run_of(self.fold), self.orchestrator_id)

    def take_in(
        self, names: tuple[str, str], key: str, rows: Sequence[Row], body: bytes | None, at: float, entropy: Entropy
    ) -> list[Row] | None:
        """The rows that follow a whole journal for another program's document; None if that cannot be read and is to be
        made again.

        `names`: of the session and of the journal. `key`, `body`: of the document; None without one of another program.
        Errors: `CorruptJournal` for the rows, and for such a document where there are no rows.
        """
        try:
            try:
                document = None if body is None else read_run_file(body, self.orchestrator_id)
            except ValueError as error:
                raise Corrupt(str(error)) from error
            return open_run(names, rows, document, at, entropy)
        except CorruptJournal:
            raise
        except Corrupt as error:
            if rows:
                return None
            text, session_id, journal = "the document of a run cannot be read", *names
            raise CorruptJournal(text, session=session_id, agent=journal, file=key, cause=str(error)) from error
