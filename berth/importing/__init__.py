"""`berth import placement`: copies a running Placement's contents into berth through the HTTP API."""
