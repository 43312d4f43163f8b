"""The orchestrator of a session, and how it executes a run.

Start with `orchestrator.py` (one call after the other), then `run_driver.py` (one run).
"""
