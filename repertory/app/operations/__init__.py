"""Operations on stored sessions without an agent: reading, copying, rewinding, erasing, repairing.

Start with `sessions.py`, the public class. Each operation is a function over an open `SessionStore`; `reading.py`
opens, owns and reads sessions. Decisions belong in `core/journal`, code for one kind of store in its folder in
`backends`.
"""
