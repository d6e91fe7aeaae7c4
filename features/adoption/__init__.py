"""Adoption: a cell takes over an instance that existed before berth."""
