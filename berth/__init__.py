"""Berth's entry point: settings, the command line, and the two modes: embedded, or each worker a process."""

__version__ = "0.1.0"
