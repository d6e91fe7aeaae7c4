"""The names that drivers of hardware and of hypervisors import (docs/howto/driver.md)."""

from bus.reports import Inventory
from bus.requests import BuildSpec, Flavor, Image
from compute_sim.core.drivers import Driver, DriverOptions
from compute_sim.core.ownership import GuestState
from compute_sim.core.provider_tree import ProviderTree, TreeMistake
from compute_sim.guest_driver import DriverError, DriverGuest, GuestDriver, HypervisorFacts
from compute_sim.guests import GuestRecord

__all__ = [
    "BuildSpec",  # flavor, image and other values with which a guest is created
    "Driver",  # the interface of a hardware driver
    "DriverError",  # a driver's call failed
    "DriverGuest",  # a guest that a hypervisor has
    "DriverOptions",  # base class of hardware drivers with options
    "Flavor",  # `BuildSpec.flavor`
    "GuestDriver",  # base class of drivers that run guests
    "GuestRecord",  # identifies a guest in calls of a driver
    "GuestState",  # "arriving", "running" or "stopped"
    "HypervisorFacts",  # properties of a hypervisor that filters read
    "Image",  # `BuildSpec.image`
    "Inventory",  # an amount of a resource class that a provider has
    "ProviderTree",  # the providers of a host, to which a driver adds its own
    "TreeMistake",  # an addition that the provider tree refuses
]
