"""Runtimes in several processes that share sessions: a call reaches the process that has the session.

Start with `peers.py`, what users give a `Runtime`. `peer_calls.py` carries a call to another process,
`running_calls.py` the calls of others that run here; `wire/` has the connections, and their proof of a secret.
The kernel knows none of it: it asks a `CallRouter` where to call.
"""
