"""Sessions in the documented layout: a document for each message.

Start with `store.py`, then `journal.py` (one agent); design note 7 says why it looks like this.
"""
