"""Server groups of instances that move."""
