"""Agents' memory in PostgreSQL. Start with `store.py`: the store as callers see it; `database.py` has
every transaction, `schema.py` the tables, `entries.py` what is written, `recall.py` how entries are found.
"""
