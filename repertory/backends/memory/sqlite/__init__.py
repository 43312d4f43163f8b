"""The embedded memory store: entries, words and vectors in one SQLite database."""
