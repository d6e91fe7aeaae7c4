"""`berth openstack import placement`: copies a running Placement's contents into berth over HTTP."""
