"""Hooks: who listens, what they are told, and how their code is called."""
