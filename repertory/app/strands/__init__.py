"""The Strands Agents SDK's names, for its programs: `repertory.strands`."""
