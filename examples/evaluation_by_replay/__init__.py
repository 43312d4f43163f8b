"""Stored conversations answered again by other models and prompts, side by side."""
