"""Carries what goes through a cell's wall between the broker of the middle and one that is the cell's own."""
