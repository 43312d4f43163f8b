"""Snapshots of an agent in the documented layout: the latest one, and numbered ones that stay.

This folder writes and reads those documents, also from other programs, turns them into records, and decides when one is
due. `repertory.backends.sessions` does the I/O. Start with `document.py`; `docs/design/storage.md` gives the reasons.
"""
