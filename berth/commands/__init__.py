"""The commands, one module for each group of commands; `berth.__main__` assembles them."""
