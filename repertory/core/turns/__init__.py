"""A turn as its journal has it: how a call goes on with it, what waits for a person, and pending work.

Start with `turn_start.py`.
"""
