"""Stores of objects: implementations of `ObjectStore` from `repertory.backends.ports`.

What belongs here: stores, and what only stores need (their files, clients and errors). The code above the port decides
what an object means. Start with `in_memory.py` (the shortest), then `files.py` and `s3.py`.
"""
