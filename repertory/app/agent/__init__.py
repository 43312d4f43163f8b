"""`Agent`: its arguments, its calls, and everything that belongs to one agent.

Start with `agent.py`, then `session.py` (the actors of an agent, and how they are kept alive).
"""
