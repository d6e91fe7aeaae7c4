"""Computations for the control room, all without I/O: charts, heat maps, capacity plans and alarms."""
