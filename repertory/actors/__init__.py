"""The agent system: runtime actors that carry out the decisions of `core`.

An actor belongs here when it has its own state and either its own way to fail or its own pace. It asks `core` for a
decision, carries it out, and reaches the outside world through `backends.ports`. Start with `agent.py` and `turn.py`
(the turn), then `persister.py` and `writer.py` (how a record becomes durable). `hooks` stands below them, `memory` and
`orchestrator` above; `app/agent/session.py` starts and supervises the actors of a session.
"""
