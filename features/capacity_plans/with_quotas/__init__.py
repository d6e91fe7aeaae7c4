"""Quotas of projects in capacity plans."""
