"""Running sessions: in a `Runtime`, for a single call, and for sync code.

Start with `session.py` (what a session is) and `host.py` (which starts its actors), then `life.py` (calls without a
host) and `blocking.py` (sync code).
"""
