"""Delivery: serving workers' tables on any bus, at least once, whatever their handlers say."""
