"""Decisions and records: what a turn does next, what the model is shown, what a message may hold.

Values in, values out. Nothing here waits, reads a clock, draws a random number, logs or touches a file; the caller
brings the time, the ids and the data. So a table can test a whole turn, and resuming after a crash is the same code as
going on. Imports nothing of ours but `repertory.errors`.

Start with `messages.py` (the data), then `turn.py` (the state machine of a turn). The folders are floors: `journal`,
`window`, `memory`, `turns` (a turn as its journal has it), `orchestration`; what reads all of them stands above.
"""
