"""Evaluation by replay, without what runs it: the turns to answer anew, recorded tools, result lines, and the page.

Start with `turns.py`, then `results.py`.
"""
