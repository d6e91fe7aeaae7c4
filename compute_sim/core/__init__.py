"""The pure decisions of agents: outcomes of builds, provider trees, devices in use."""
