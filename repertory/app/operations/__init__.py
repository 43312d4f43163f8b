"""What is done to stored sessions from outside: looking, copying, going back, erasing, mending.

Start with `sessions.py`, the class that users see; each operation has a file of its own, as functions over an open
`SessionStore`. Decisions belong into `core/journal`; what only one kind of store can do, into its folder in `backends`.
"""
