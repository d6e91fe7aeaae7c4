"""Moves of builds in their cell: migrate, resize, evacuate, shelve, unshelve, rebuild, and between cells."""
