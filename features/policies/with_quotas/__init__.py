"""Tests of changed quotas."""
