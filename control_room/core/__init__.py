"""What the pages show, worked out: windows of time, charts, grids, alarms. Pure."""
