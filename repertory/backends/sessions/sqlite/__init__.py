"""Sessions as journals in one SQLite database."""
