"""The agent that builds on Ironic's nodes: executes the conductor's orders through Ironic's API."""
