"""Recall, decided: what of a question is looked for, how what was found is ranked, and what of a memory can be found.

No model, no index and no I/O: a store finds candidates and asks here. Start reading with `entries.py`, then
`ranking.py`.
"""
