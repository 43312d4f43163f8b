"""What is done to stored sessions from outside: looking, copying, going back, erasing, mending.

Start with `sessions.py`, the class that users see; each operation is a function over an open `SessionStore`, which
`reading.py` opens, owns and reads. Decisions belong into `core/journal`; what only one kind of store can do, into its
folder in `backends`.
"""
