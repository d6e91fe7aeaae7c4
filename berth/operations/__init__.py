"""Functions that query or change a running berth over its bus, for the command line and the control room."""
