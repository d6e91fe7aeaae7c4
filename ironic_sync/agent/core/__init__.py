"""Pure decisions of the bare-metal agent: the next step on a node, and the values to write to the node."""
