"""Pure decisions about Ironic's nodes, without I/O, clock or tasks."""
