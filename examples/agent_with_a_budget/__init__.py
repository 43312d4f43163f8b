"""An agent that many people share, each with an allowance for the day."""
