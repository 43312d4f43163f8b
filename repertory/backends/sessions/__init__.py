"""Where journals are kept: implementations of `SessionStore` from `repertory.backends.ports`.

What may enter: stores, and what only stores need (their files, locks and threads). What a journal means is decided in
`repertory.core.journal`; who writes when, above the port. A folder for each layout; what several need lies beside them.

Start with `sqlite/store.py` (the store as callers see it), then `sqlite/journals.py` (every statement it runs); design
note 2 says why it looks like this.
"""
