"""Memory stores: where what agents remember is kept.

A file here speaks to one store and decides nothing about conversations. What a store is stands in
`repertory.backends.memory_ports`. Start with `sqlite/store.py`.
"""
