"""The page of operators: what runs, what waits, why, and what if.

Its worker is in `worker`, its pages are in `pages`; what it hears it counts, what it shows else it asks for.
"""
