"""The edge: what users construct and call, the command line, and the only code that chooses implementations.

Everything below is given its components from here. Start with `agent.py` (one agent), then `runtime.py` (many
sessions in one process), then `host.py` (which builds the actors of both).
"""
