"""Operations on the history of a journal: rewind, fork, redact, compare, prune."""
