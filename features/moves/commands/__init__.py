"""The commands about moves, one module for each group of commands."""
