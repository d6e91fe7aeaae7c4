"""The driver kit: tests for the rules that every driver must follow."""

from compute_sim.driver_kit.stand import DriverStand, RuleResult, check_driver

__all__ = ["DriverStand", "RuleResult", "check_driver"]
