"""Plugins to begin with: skills, steering, interventions, questions before tools, and goals.

Each is made of hooks and tools that any program could write. Start reading at `skills.py`.
"""
