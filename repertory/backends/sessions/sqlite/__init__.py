"""Sessions as journals in one SQLite database.

Start with `store.py`, then `journals.py` (every statement it runs).
"""
