"""Decisions and records: what a turn does next, what the model is shown, what a message is.

Values in, values out. Nothing here waits, reads a clock, draws a random number, logs or touches a file; whoever calls
brings the time, the ids and the data. So a whole turn can be tested by a table, and resuming after a crash is the same
code as going on. Imports nothing of ours but `repertory.errors`.

Start with `messages.py` (the data), then `turn.py` (the state machine of a turn).
"""
