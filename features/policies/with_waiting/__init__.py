"""Tests of policies on requests that waited."""
