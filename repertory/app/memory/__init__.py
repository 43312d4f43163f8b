"""Long-term memory: the manager and its stores.

Start with `memory_manager.py`; `sqlite.py` and `bedrock.py` are stores.
"""
