"""Queues that give jobs to workers: in a SQLite file, in a folder, in SQS.

Start with `ports.py`. What becomes of a job is decided in `core/queue_jobs.py`; a queue keeps it, and knows who has it.
"""
