"""Bringing sessions to life: `Runtime`, one session by itself, and sync code.

Start with `runtime.py` and `host.py` (many sessions), then `seat.py` (one) and `blocking.py` (sync code).
"""
