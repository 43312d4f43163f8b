"""Hooks: the events of an agent, who listens to them, and how callbacks are called.

Start with `events.py` (the events, and who listens), then `calls.py` (how callbacks are called).
"""
