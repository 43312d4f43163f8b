"""Sessions whose snapshots other programs can read, with the journal beside or inside them.

Start with `store.py`, then `publisher.py`, which writes them; `docs/design/storage.md` gives the reasons.
"""
