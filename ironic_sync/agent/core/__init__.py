"""Pure decisions of the bare-metal agent: the next step on a node, and the values written to it."""
