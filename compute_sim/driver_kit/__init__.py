"""The driver kit: the rules that a driver must follow, each as a test that any driver can be run through."""

from compute_sim.driver_kit.stand import DriverStand, RuleResult, check_driver

__all__ = ["DriverStand", "RuleResult", "check_driver"]
