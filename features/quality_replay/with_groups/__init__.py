"""Server groups in replays of recorded requests."""
