"""Decisions about recall: which words of a question are searched, how hits are ranked, and what of a memory is indexed.

No model, no index and no I/O: a store finds candidates and ranks them with this code. Start with `entries.py`, then
`ranking.py`.
"""
