"""Reads what extra specs and image properties require of the hardware."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from bus.requests import Flavor, Image
from features.guest_hardware.core.aliases import PciAlias, pci_aliases
from features.guest_hardware.core.capabilities import CAPABILITIES, add_capabilities, add_image
from features.guest_hardware.core.devices import Device, add_devices, devices_of
from features.guest_hardware.core.guest_specs import GuestSpecs
from features.guest_hardware.core.numa_cells import add_numa_cells, has_cells, page_choices
from features.guest_hardware.settings import GuestHardwareSettings
from scheduler_worker.core.extension import QuestionDraft, RequestReader, RequestReaderPart

_TOPOLOGY = """
    hw:cpu_policy hw:cpu_thread_policy hw:cpu_dedicated_mask hw:emulator_threads_policy hw:numa_nodes
    hw:mem_page_size hw:pci_numa_affinity_policy pci_passthrough:alias
""".split()  # noqa: SIM905 - shorter than a list


class _AnyAlias(Mapping[str, PciAlias]):
    """A mapping with a PCI alias for every name: only the scheduler's settings list the valid names."""

    def __getitem__(self, name: str) -> PciAlias:
        return PciAlias("CUSTOM_ANY")

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def reader(settings: GuestHardwareSettings | None) -> RequestReader:
    """Return the reader of flavors with these settings; None: with every alias, and no traits of images."""
    if settings is None:
        return request_reader(_AnyAlias(), ())
    return request_reader(pci_aliases(settings.pci_aliases), settings.image_traits)


def request_reader(aliases: Mapping[str, PciAlias], image_traits: Collection[str]) -> RequestReader:
    """Return the reader of flavors with these PCI aliases, and with the traits of images of these kinds."""
    return RequestReader(
        alternatives=partial(_alternatives, aliases, image_traits),
        specs=frozenset({*CAPABILITIES, *_TOPOLOGY}),
        numbered=frozenset({"hw:numa_cpus.", "hw:numa_mem."}),
        scopes=frozenset({"os"}),
    )


def _alternatives(
    aliases: Mapping[str, PciAlias],
    image_traits: Collection[str],
    flavor: Flavor,
    image: Image | None,
    where: str,
) -> Sequence[Callable[[QuestionDraft], None]]:
    """Return an alternative for each acceptable page size. A device that prefers a NUMA cell of the guest
    yields two: with the affinity, then without.
    """
    specs = GuestSpecs(flavor, image, where)
    pages, devices = page_choices(specs), devices_of(specs, aliases)
    prefers = has_cells(specs) and any(device.numa_policy == "preferred" for device in devices)
    return [
        partial(_add, specs, image, image_traits, devices, page_kb, near)
        for page_kb in pages
        for near in ((True, False) if prefers else (True,))
    ]


def _add(
    specs: GuestSpecs,
    image: Image | None,
    image_traits: Collection[str],
    devices: Sequence[Device],
    page_kb: int,
    near: bool,
    draft: QuestionDraft,
) -> None:
    cells = add_numa_cells(draft, specs, page_kb)
    add_devices(draft, devices, cells, near=near)
    add_capabilities(draft, specs)
    if image is not None:
        add_image(draft, image, image_traits)


PART = RequestReaderPart(reader)
