"""The composition root: settings, the command line, and the two ways to run (embedded, services)."""

__version__ = "0.1.0"
