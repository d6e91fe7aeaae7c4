"""Checks tokens at an OpenStack Keystone, and signs its users in."""
