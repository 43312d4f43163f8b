"""The documented layout of a session as a tree of small JSON documents, one per message. Pure.

This folder writes records as those documents and reads them back, also when another program wrote them.
`repertory.backends.sessions` does the I/O. Start with `documents.py`; `docs/design/storage.md` gives the reasons.
"""
