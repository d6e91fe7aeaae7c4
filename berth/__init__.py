"""Berth's entry point: settings, the command line, and the workers, all in one process or each in its own."""

__version__ = "0.1.0"
