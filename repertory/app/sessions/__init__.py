"""Places where sessions are stored, and their session managers.

Start with `sessions.py` (the protocols, and SQLite as the default); each other kind of place is a module.
"""
