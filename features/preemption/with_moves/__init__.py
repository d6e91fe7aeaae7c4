"""Preempted instances that are shelved, and placed again when capacity is free."""
