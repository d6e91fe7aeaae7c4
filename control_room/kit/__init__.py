"""What features import of `control_room`."""
