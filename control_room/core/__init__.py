"""Pure computations for the pages: windows of time, charts, grids, alarms."""
