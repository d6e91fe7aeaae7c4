"""Fixtures of agents' files."""

from tests.support.agent_disks import disk as disk
