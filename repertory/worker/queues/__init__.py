"""Queues that give jobs to workers: in a SQLite file, in a folder, in PostgreSQL, in SQS.

Start with `ports.py`. What becomes of a job is decided in `worker/decisions.py`; a queue keeps it, and knows who has
it.
"""
