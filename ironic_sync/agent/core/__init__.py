"""What the agent does next with a node, and what it writes there: pure decisions."""
