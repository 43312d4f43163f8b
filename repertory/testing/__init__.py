"""The public test kit: what tests of an agent system, or of a new backend, need besides the system itself.

What belongs here: contract suites for ports, fakes that pass them, wrappers that fail on purpose, referees of model
services, virtual time. No implementation is imported here, except by `strict_provider.py`, which shows the requests of
the models to the referees. Only the contract suites need pytest. Start with `session_contract.py` (what every
session store must do), `session_fault_contract.py` (also when its connection is lost) and `in_memory_sessions.py` (the
fake one).
"""
