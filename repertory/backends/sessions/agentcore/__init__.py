"""Sessions in Amazon Bedrock AgentCore Memory.

Start with `store.py`, then `layout.py` (what an event holds); design note 11 gives the reasons.
"""
