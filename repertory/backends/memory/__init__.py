"""Memory stores: where agents' memories are kept.

A file here calls one store and decides nothing about conversations. `repertory.backends.memory_ports` defines a store.
Start with `sqlite/store.py`.
"""
