"""Where runtimes find each other when the place of their sessions cannot tell: Valkey or Redis.

Start with `shared.py`, then read `link.py` (the connection) and `scripts.py` (everything that the server does).
"""
