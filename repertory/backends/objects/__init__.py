"""Where objects are kept: implementations of `ObjectStore` from `repertory.backends.ports`.

What may enter: stores, and what only stores need (their files, clients and errors). What an object means is decided
above the port. Start with `memory.py` (the shortest), then `files.py` and `s3.py`.
"""
