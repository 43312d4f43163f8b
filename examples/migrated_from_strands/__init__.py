"""The same program before and after it moved from strands-agents to Repertory."""
