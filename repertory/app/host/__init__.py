"""Bringing sessions to life: in a `Runtime`, for a call by itself, and for sync code.

Start with `session.py` (what a session is) and `host.py` (what brings it to life), then `life.py` (calls that find no
host), `runtime.py` and `blocking.py` (sync code).
"""
