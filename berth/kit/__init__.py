"""What features import of `berth`."""
