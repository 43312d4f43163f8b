"""Decisions about memory: what is extracted from a conversation and when, what is recalled and shown.

Start with `options.py`, the options and entries of stores, then `progress.py`.
"""
