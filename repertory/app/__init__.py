"""What users construct and call, the command line, and the only code that chooses implementations.

The layers below get their components from here. Start with `agent/agent.py` (one agent), then `host/runtime.py` (many
sessions in one process), then `host/host.py` (which builds the actors of both).
"""
