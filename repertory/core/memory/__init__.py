"""Memory, decided: what is taken in from a conversation and when, what is found, and how the model is shown it.

Start reading with `options.py`, which is what stores speak, then `progress.py`.
"""
