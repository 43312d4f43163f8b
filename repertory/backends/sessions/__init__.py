"""Where journals are kept: implementations of `SessionStore` from `repertory.backends.ports`.

What may enter: stores, and what only stores need (their files, locks and threads). What a journal means is decided in
`repertory.core.journal`; who writes when, above the port. A folder for each layout; what several need lies beside them.

Start with `table.py` (who may write, the same for all) and `liveness.py` (whether an owner is alive), then
`sqlite/store.py` (a store as callers see it) and `sqlite/journals.py` (every statement it runs). Design note 31 says
why stores are made of these parts, note 2 why SQLite looks like this.
"""
