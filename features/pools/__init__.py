"""Pools: resources that hosts share, such as storage and addresses."""
