"""Queues that give jobs to workers: in a SQLite file, in a folder, in PostgreSQL, in SQS.

`worker/ports.py` says what a queue does. `worker/decisions.py` decides what becomes of a job; a queue keeps it, and
knows who has it.
"""
