"""Tests of changed priority classes."""
