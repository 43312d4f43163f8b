"""Sessions in the documented layout: one document per message.

Start with `store.py`, then `journal.py` (one agent); design note 7 gives the reasons.
"""
