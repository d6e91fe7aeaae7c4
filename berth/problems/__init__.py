"""The list of problems: its kinds in the kernel, how their facts are read and judged, and their alerts."""
