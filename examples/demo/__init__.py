"""The demonstration behind `make demo`: conversations that survive a worker that is killed again and again.

What may enter: the parent, which talks, kills and checks; the worker, which hosts the sessions; and what the two need.
Nothing else imports this package. Start with `demonstration.py` (the whole run and what is proved), then `worker.py`
(what is killed).
"""
