"""The agent system, made of runtime actors and core decisions.

An actor may live here when it has its own state and its own failure or its own pace. It asks `core` for a decision,
carries it out, and speaks to the world through `backends.ports`. Start with `agent.py` and `turn.py` (the
turn), then `persister.py` and `writer.py` (how a record becomes durable), then `session.py` (how they hang together).
"""
