"""Operations on the history of a journal: rewind, fork, compare, prune. `journal/redact.py` redacts."""
