"""Hooks: who listens, what they are told, and how their code is called.

Start with `events.py` (what there is to hear of), then `registry.py` (who hears it) and `calls.py` (how).
"""
