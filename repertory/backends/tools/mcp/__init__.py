"""Tool servers that speak the Model Context Protocol.

Start with `source.py`, then `connection.py` (one connection) and `wire.py` (size limits of answers).
"""
