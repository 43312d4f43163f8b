"""Decisions about runs of several agents: graph shapes, frontiers, records, results, and the input of each node.

Start with `run.py` (a run and its records), then `plan.py` (what may start next).
"""
