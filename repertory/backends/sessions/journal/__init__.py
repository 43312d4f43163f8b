"""Sessions as journals in an object store: a folder, a bucket, or memory.

Start with `store.py`, then `format.py` (what lies where) and `ownership.py`; `docs/design/storage.md` says why.
"""
