"""The embedded memory store: entries, words and vectors in one SQLite database.

Start with `store.py`, then `database.py` (every transaction) and `recall.py` (how entries are found).
"""
