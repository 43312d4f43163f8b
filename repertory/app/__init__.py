"""The objects that users construct and call, and the only code of the kernel that chooses implementations.

Floors, each on those before it: `sessions`, `host`, `memory`, `agent` and `operations`, `orchestration`, `embedding`.
Start with `agent/agent.py` (one agent), then `embedding/runtime.py` (many sessions in one process), then
`host/host.py` (which builds the actors of both).
"""
