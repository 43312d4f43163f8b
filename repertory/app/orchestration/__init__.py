"""Graphs and swarms, as users name them.

Start with `graph.py`, then `orchestrator.py` (what graphs and swarms share) and `node_runner.py` (how a node runs).
"""
