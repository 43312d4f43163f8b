"""`Graph` and `Swarm`.

Start with `graph.py`, then `orchestrator.py` (what graphs and swarms share) and `nodes.py` (how a node runs).
"""
