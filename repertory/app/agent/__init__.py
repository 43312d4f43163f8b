"""`Agent`: what users give it, how it is called, and what belongs to one agent.

Start with `agent.py`, then `life.py` (how its session is open) and `assembly.py` (the actors that it is made of).
"""
