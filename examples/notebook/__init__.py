"""A notebook over a stored conversation, and a runner that executes it without Jupyter."""
