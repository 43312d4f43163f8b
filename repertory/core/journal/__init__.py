"""The journal: what a conversation is, as records in a log, and everything that follows from them.

What may enter: records, their bytes, and pure folds over them. No file, no clock, no entropy: those are handed in.
`docs/journal-format.md` describes the bytes. Start with `records.py` (what can be said), then `fold.py` (what it
amounts to), `appender.py` (records to rows) and `restore.py` (rows back to a fold).
"""
