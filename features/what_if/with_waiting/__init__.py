"""What-if answers with the time that a request would wait."""
