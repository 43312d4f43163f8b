"""Sessions whose snapshots other programs can read, with the journal beside or inside them.

Start with `store.py`, then `publisher.py`, which writes them; design note 8 gives the reasons.
"""
