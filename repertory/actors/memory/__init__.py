"""Long-term memory: the actors that bring a conversation to the memory stores, and search them.

Start with `consumer.py` (the memory of one session), then `store.py` (the actor of one store).
"""
