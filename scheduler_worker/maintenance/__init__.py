"""Drains hosts for maintenance windows, and evacuates dead hosts."""
