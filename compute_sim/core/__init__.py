"""The pure decisions of simulated agents: outcomes of builds, provider trees, devices in use."""
