"""`Agent`: what users give it, how it is called, and what belongs to one agent."""
