"""Snapshots of an agent, as others keep them: one document that says all of it, and numbered ones that stay.

What may enter: how such documents are spelled and read, whoever wrote them, what of them becomes records, and when one
is due. Who reads and writes is decided in `repertory.backends.sessions`. Start with `document.py`; design note 8 says
why.
"""
