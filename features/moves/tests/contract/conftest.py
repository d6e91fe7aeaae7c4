"""Fixtures of agents' files."""

from tests.contract.test_guest_file import disk as disk
