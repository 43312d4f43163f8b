"""The public test kit: what a test of an agent system, or of a new backend, needs besides the system itself.

What may enter: contract suites for ports, fakes that pass them, wrappers that fail on purpose, virtual time. Nothing
here knows an implementation, and pytest is needed by the contract suites alone. Start with `session_contract.py` (what
every session store must do) and `in_memory_sessions.py` (the fake one).
"""
