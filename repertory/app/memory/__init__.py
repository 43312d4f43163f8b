"""Long-term memory, as users name it.

Start with `memory_manager.py`; `sqlite.py` and `bedrock.py` are stores.
"""
