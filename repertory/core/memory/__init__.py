"""Memory, decided: what is taken in from a conversation and when, what is found, and how the model is shown it.

Start reading with `entry.py` and `options.py`, which are what stores speak, then `progress.py`.
"""
