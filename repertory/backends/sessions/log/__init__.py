"""Sessions in a folder: one append-only file for each.

Start with `store.py`, then read `owner_record.py` (who may write) and `log_file.py`.
"""
