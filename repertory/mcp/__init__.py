"""Tool servers that speak the Model Context Protocol.

Start with `client.py`, what users give an agent, then `source.py`, `connection.py` (one connection) and `wire.py`
(size limits of answers). The kernel knows none of it: its agents take any `ToolSource`.
"""
