"""Jobs from queues: turns that somebody has sent, and that a process runs when it comes to them.

Start with `worker.py`; `decisions.py` says what becomes of a job that failed, `ports.py` what a worker asks of a queue,
and `queues/` has the queues: SQLite, folders, PostgreSQL and SQS.
"""
