"""Shared nodes: several agents of a cell deploy instances on the same Ironic nodes."""
