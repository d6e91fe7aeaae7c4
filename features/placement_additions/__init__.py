"""Routes that berth serves over HTTP in addition to the Placement API, and the bulk load of providers."""
