"""Berth's entry point: settings, the command line, and the workers, in one process or several."""

__version__ = "0.1.0"
