"""The demonstration behind `make demo`: conversations that survive a worker that is killed again and again.

It holds the parent, which talks, kills and checks; the worker, which hosts the sessions; and what the two need. Nothing
else imports this package. Start with `demonstration.py` (the whole run and its checks), then `worker.py` (the process
that is killed).
"""
