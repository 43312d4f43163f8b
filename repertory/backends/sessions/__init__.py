"""Stores of journals: implementations of `SessionStore` from `repertory.backends.ports`.

What belongs here: stores, and what only stores need (their files, locks and threads). `repertory.core.journal` decides
what a journal means; the code above the port decides who writes when. Each layout has a folder; shared parts lie beside
the folders.

Start with `table.py` (who may write, the same for all) and `liveness.py` (whether an owner is alive), then
`sqlite/store.py` (a store as callers see it) and `sqlite/journals.py` (every statement it runs).
`docs/design/storage.md` says why it looks like this.
"""
