"""Tests that every operator's driver of a hypervisor or a host's hardware must pass."""

from compute_sim.driver_kit.stand import DriverStand, RuleResult, check_driver

__all__ = ["DriverStand", "RuleResult", "check_driver"]
