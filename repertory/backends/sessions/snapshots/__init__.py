"""Sessions whose snapshots others can read, with the journal beside or inside them."""
