"""Places where sessions are kept, as users name them."""
