"""What an Ironic event means: pure decisions, without a wire, a clock or a task."""
