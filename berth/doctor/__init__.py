"""`berth doctor`: observes a berth and its services, and judges the result."""
