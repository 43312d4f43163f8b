"""Places where sessions are kept, as users name them.

Start with `sessions.py` (the default, and what a place is); each other kind of place is a module.
"""
