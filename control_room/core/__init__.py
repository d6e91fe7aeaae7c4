"""Computations for the control room, all without I/O: charts, heat maps, how many instances would fit,
alarms."""
