"""The pure part of shared nodes."""
