"""The orchestrator of a session, and how it drives a run."""
