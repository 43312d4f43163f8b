"""Questions to a folder of text, answered with sources."""
