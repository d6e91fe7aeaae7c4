"""Describes the options of `berth boot`, which other commands take as well."""

from typing import Any

from berth.kit.boot_options import feature_options
from berth.kit.options import HOW_MANY, WHERE, OptionsOf, described
from berth.kit.publishing import checked
from berth.kit.terminal import note
from bus.messages import BuildRequested

BOOT_OPTIONS = {
    "vcpus": described("VCPU of each instance (default: 1).", min=0),
    "memory_mb": described("Memory of each instance (default: 512).", min=0),
    "disk_gb": described("Disk of each instance (default: 1).", min=0),
    "flavor": described("Name of the flavor that size options and --spec describe; `metal` needs none."),
    "extra_spec": described(
        "resources:CLASS=n, trait:NAME=required, hw:numa_nodes=2, ... (docs/requests.md); may be repeated.",
        "--extra-spec",
        "--spec",
        metavar="KEY=VALUE",
    ),
    "or_else": described(
        "What would do instead: JSON, or what differs (vcpus=2,KEY=); the better first.",
        metavar="FILE|KEY=VALUE,...",
    ),
    "image": described("The image; for Ironic a name or URL that it can fetch.", metavar="NAME"),
    "image_property": described(
        "Of the image: trait:NAME=required, hw_...; image_source, ... for Ironic.", metavar="KEY=VALUE"
    ),
    "count": described("Instances, all or none.", min=1, max=1000, panel=HOW_MANY),
    "at_least": described(
        "The least number of instances that is enough, if --count do not fit.",
        min=0,
        metavar="N",
        panel=HOW_MANY,
    ),
    "zone": described("Only hosts of this zone.", panel=WHERE),
    "cell": described("Only hosts of this cell.", panel=WHERE),
    "aggregate": described(
        "Only hosts in one of these aggregates; if repeated, every option must be met.",
        metavar="NAME|UUID,...",
        panel=WHERE,
    ),
    "not_aggregate": described(
        "No host in these aggregates; may be repeated.", metavar="NAME|UUID,...", panel=WHERE
    ),
    "host": described("Only this host.", metavar="NAME|UUID", panel=WHERE),
    "force_host": described(
        "This host, without filters; it still needs enough free capacity.", metavar="NAME|UUID", panel=WHERE
    ),
    "ignore_host": described("Not this host; may be repeated.", metavar="NAME|UUID", panel=WHERE),
    "hint": described(
        "same_host=UUID, different_host=UUID, build_near_host_ip=IP, cidr=/24, query=JSON; may be repeated.",
        metavar="KEY=VALUE",
        panel=WHERE,
    ),
    "prefer_trait": described(
        "Rather hosts with it, by so much (1; less than 0: rather not); may be repeated.",
        metavar="TRAIT[=WEIGHT]",
        panel=WHERE,
    ),
    "name": described("What you call them; `berth instance list --name` finds them."),
    "project": described("The project that owns the instances.", panel=WHERE),
    "more": OptionsOf(feature_options()),
}


def boot_descriptions(*without: str) -> dict[str, Any]:
    """Return the descriptions of the options of `berth boot`, except those of the fields `without`."""
    described = {name: option for name, option in BOOT_OPTIONS.items() if name not in without}
    return described | {"more": OptionsOf(feature_options(), without)}


def print_notes(request: BuildRequested) -> None:
    """Print which parts of a build request berth ignores, because they have no meaning for berth."""
    from berth.kit.request_sense import sense_of  # loads the scheduler's parser, which takes long

    for text in sense_of(checked(request)):
        note(text)
