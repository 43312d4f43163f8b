"""What runs of several agents are decided by: shapes, frontiers, records, results and what each node is told.

Start with `run.py` (a run and its records), then `plan.py` (what may start next).
"""
