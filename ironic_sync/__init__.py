"""Copies Ironic's nodes to placement. Each node is a provider with one unit of a resource class, which is
reserved while no instance can be deployed on the node.
"""
