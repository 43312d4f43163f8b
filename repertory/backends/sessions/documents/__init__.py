"""Sessions in the documented layout: a document for each message."""
