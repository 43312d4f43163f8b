"""Sessions as journals in an object store: a folder, a bucket, or memory."""
