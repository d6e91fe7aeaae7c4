"""The capacity of the cloud over time."""
