"""Long-term memory: the actors that bring what was said to the stores, and search them."""
