"""Sessions in PostgreSQL. Start with `store.py`: the store as callers see it; `schema.py` has the tables, `presence.py`
how owners show that they are alive.
"""
