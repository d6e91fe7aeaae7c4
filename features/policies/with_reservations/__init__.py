"""Tests of changed reservations."""
