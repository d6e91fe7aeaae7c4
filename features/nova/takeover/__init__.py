"""Finds what would go wrong when berth takes over a Nova region: `berth openstack check`."""
