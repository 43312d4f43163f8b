"""Bringing sessions to life: `Runtime`, one session by itself, and sync code."""
