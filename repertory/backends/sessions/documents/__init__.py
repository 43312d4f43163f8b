"""Sessions in the documented layout: one document per message.

Start with `store.py`, then `trees.py`; `docs/design/storage.md` gives the reasons.
"""
