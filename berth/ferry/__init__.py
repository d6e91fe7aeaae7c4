"""Forwards messages between the central broker and a cell's separate broker."""
