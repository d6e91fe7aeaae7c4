"""The command line, a file for each group of commands; `berth.__main__` puts them together."""
