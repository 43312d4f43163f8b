"""The documented layout of a session as a tree of small JSON documents, one per message: pure.

What may enter: how records are spelled in those documents and read back, also when somebody else wrote them. Who reads
and writes is decided in `repertory.backends.sessions`. Start with `documents.py`; design note 7 says why.
"""
