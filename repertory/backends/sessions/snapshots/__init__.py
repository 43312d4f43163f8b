"""Sessions whose snapshots other programs can read, with the journal beside or inside them.

Start with `store.py`, then `journal.py` (where the journal lies); design note 8 gives the reasons.
"""
