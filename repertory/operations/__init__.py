"""Operations on stored sessions without an agent: reading, copying, rewinding, erasing, repairing.

Start with `sessions.py`, the public class. Each operation is a function over an open `SessionStore`, which
`app/sessions/reading.py` opens, owns and reads. Decisions belong in `core/history`, code for one kind of store in its
folder in `backends`. The kernel knows none of it: a turn asks for no operation.
"""
