"""Requests as alternatives (`Wish`), and their queries in short form."""

from collections.abc import Mapping, Sequence
from typing import Any

from bus.queries import FindCandidates
from bus.requests import Flavor
from scheduler_worker.core.extra_specs import PciAlias, RequestOptions
from scheduler_worker.core.request import alternatives_of
from scheduler_worker.core.rule import Alternative
from tests.support.ids import uid
from tests.support.scheduler_builders import a_request

OPTIONS = RequestOptions(
    pci_aliases={
        "gpu": PciAlias("CUSTOM_GPU", ("CUSTOM_HBM",)),
        "nic": PciAlias("CUSTOM_NIC", numa_policy="required"),
        "fpga": PciAlias("FPGA", numa_policy="socket"),
    }
)
HOSTS = {"host1": (uid(1, "c"),), "host2": (uid(2, "c"),), "rack": (uid(3, "c"), uid(4, "c"))}


def named(host: str) -> Sequence[str]:
    by_root = [root for roots in HOSTS.values() for root in roots if root == host]
    return by_root or HOSTS.get(host, ())


def flavor(specs: Mapping[str, str] | None = None, **figures: int) -> Flavor:
    known = {"vcpus": 4, "memory_mb": 4096, "disk_gb": 5} | figures
    return Flavor(name="f", extra_specs=dict(specs or {}), **known)


def alternatives(options: RequestOptions = OPTIONS, **request: Any) -> tuple[Alternative, ...]:
    return alternatives_of(a_request(**request), options, named, HOSTS.keys)


def asked(specs: Mapping[str, str], **figures: int) -> FindCandidates:
    (alternative,) = alternatives(flavor=flavor(specs, **figures))
    return alternative.question


def groups(question: FindCandidates) -> dict[str, str]:
    """By suffix: `VCPU 4, +REQUIRED, -FORBIDDEN, ONE|OTHER`."""
    told = {}
    for group in question.groups:
        parts = [f"{name} {amount}" for name, amount in group.resources.items()]
        parts += [f"+{name}" for name in group.required] + [f"-{name}" for name in group.forbidden]
        parts += ["|".join(some) for some in group.required_any]
        told[group.suffix] = ", ".join(parts)
    return told
