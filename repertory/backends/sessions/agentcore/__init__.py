"""Sessions in Amazon Bedrock AgentCore Memory.

Start with `store.py`, then `layout.py` (what an event holds); `docs/design/storage.md` gives the reasons.
"""
