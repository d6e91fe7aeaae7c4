"""`berth doctor`: what was seen of a berth and its services, and what is to be thought of it."""
