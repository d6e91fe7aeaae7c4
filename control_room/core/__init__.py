"""Computations for the pages without I/O, such as charts, heat maps, capacity plans and alarms."""
