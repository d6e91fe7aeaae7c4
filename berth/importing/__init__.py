"""`berth import placement`: what a running Placement knows, brought into berth over the API both speak."""
