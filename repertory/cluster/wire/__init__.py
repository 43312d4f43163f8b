"""Runtimes that share one place of sessions: who is there, and how they talk."""
