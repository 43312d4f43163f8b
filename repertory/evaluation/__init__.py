"""Recorded turns, run again with other models, prompts or tools, and compared.

Start with `replaying.py`; `decisions/` has what compares and counts, without I/O.
"""
