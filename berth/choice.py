"""Converts settings to the scheduler's configuration: filters, weighers, and options for build requests."""

from berth import features

features.add_filters()
