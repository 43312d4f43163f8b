"""`Agent`: what users give it, how it is called, and what belongs to one agent.

Start with `agent.py`, then `session.py` (the actors that it is made of, and how they are kept alive).
"""
