"""What-if answers within the quota of a project."""
