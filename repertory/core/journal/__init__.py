"""The journal: a conversation as records in a log, and what is computed from them.

This folder holds records, their bytes, and pure folds over them. It opens no file and reads no clock; callers pass the
time and random bytes in. `docs/reference/formats/journal-format.md` describes the bytes. Start with `records.py` (the
kinds of records), then `fold.py` (records to state) and `restore.py` (rows back to a fold, and records to rows).
"""
