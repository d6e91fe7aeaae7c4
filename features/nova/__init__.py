"""Schedules for a real Nova in place of nova-scheduler, or compares berth with it."""
