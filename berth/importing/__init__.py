"""`berth import placement`: copies the contents of a running Placement into berth over their API."""
