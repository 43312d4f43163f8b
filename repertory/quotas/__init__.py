"""Quotas of models: how much all processes together may ask of one model in a minute.

Start with `quotas.py`, which stands around a model's `stream`. `decisions.py` has both halves of the decision: the
account that all processes share, and the desk of one process, where calls wait in their order. `stores.py` has the
port of a store, which keeps accounts, and the one in memory; `sqlite.py` and `postgres.py` have those of many
processes.
"""
