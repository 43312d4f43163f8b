"""A worker that writes a report of each shop every night, by timers that are stored with the shops' sessions.

`reports.py` has the agent with its tools, `__main__.py` the worker and the command line.
"""
