"""Long-term memory, as users name it."""
