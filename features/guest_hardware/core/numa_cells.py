"""Translates the guest's NUMA cells, dedicated processors and page sizes into request groups.

Each NUMA cell of the guest is a group, `_numa0` and so on, that one provider must supply: a NUMA cell of
the host, or the host itself if it reports no NUMA cells.
"""

import re
from dataclasses import dataclass
from functools import reduce
from math import gcd
from operator import or_

from bus.vocabulary import MAX_INT
from features.guest_hardware.core.guest_specs import GuestSpec, GuestSpecs
from scheduler_worker.core.extension import GroupDraft, QuestionDraft, Unreadable

HYPERTHREADING = "HW_CPU_HYPERTHREADING"
MAX_CELLS = 64
MAX_CPUS = 100_000
SMALL_KB = 4
_LARGE_KB = (1024**2, 2 * 1024)  # 1 GB and 2 MB, the sizes that `hw:mem_page_size=large` permits
_SIZE = re.compile(r"([0-9]{1,9})\s*(|[kmg]i?b?)", re.IGNORECASE)
_UNITS = {"": 1, "k": 1, "m": 1024, "g": 1024**2}
_RANGE = re.compile(r"\s*(\^?)(\d{1,6})(?:-(\d{1,6}))?\s*")


def _page_class(kb: int) -> str:
    for unit, size in (("GB", 1024**2), ("MB", 1024)):
        if kb % size == 0:
            return f"CUSTOM_MEMORY_PAGES_{kb // size}{unit}"
    return f"CUSTOM_MEMORY_PAGES_{kb}KB"


@dataclass(frozen=True)
class GuestCell:
    """A NUMA cell of the guest: its processors as a bit mask (bit n is processor n), and its memory."""

    cpus: int
    memory_mb: int


def page_choices(specs: GuestSpecs) -> tuple[int, ...]:
    """Return the page sizes in KB that a guest accepts, the best first; 0 stands for ordinary memory."""
    spec = _page_size(specs)
    text = "small" if spec is None else spec.value.strip().lower()
    if spec is None or text == "small":
        return (0,)
    if text not in ("large", "any"):
        kb = _page_kb(spec)
        return (0 if kb == SMALL_KB else kb,)
    memory = gcd(*(cell.memory_mb for cell in _cells(specs))) * 1024  # KB that divide each cell's memory
    fitting = [kb for kb in _LARGE_KB if memory % kb == 0]
    if text == "any":
        return (*fitting, 0)
    if not fitting:
        why = f"what a cell gets of {specs.flavor.memory_mb} is no multiple of a large page"
        also = f"(1GB, 2MB), and {spec.at}: {spec.value!r}"
        raise Unreadable(f"{specs.where}.memory_mb: {why} {also}")
    return tuple(fitting)


def _page_size(specs: GuestSpecs) -> GuestSpec | None:
    flavor, image = specs.of_flavor("hw:mem_page_size"), specs.of_image("hw_mem_page_size")
    if image is None:
        return flavor
    text = flavor.value.strip().lower() if flavor is not None else ""
    if flavor is None or text not in ("large", "any"):
        if flavor is not None and text == image.value.strip().lower():
            return flavor
        other = f"{flavor.at}: {flavor.value!r}" if flavor is not None else "the flavor does not set it"
        raise Unreadable(f"{image.at}: only for a flavor whose hw:mem_page_size is large or any; {other}")
    chosen = image.value.strip().lower()
    is_small = chosen == "small" or (chosen not in ("any", "large") and _page_kb(image) == SMALL_KB)
    if text == "large" and is_small:
        raise Unreadable(f"{flavor.at}: {flavor.value!r}, and {image.at}: {image.value!r}")
    return flavor if chosen == "any" else image


def _page_kb(spec: GuestSpec) -> int:
    parts = _SIZE.fullmatch(spec.value.strip())
    kb = int(parts[1]) * _UNITS[parts[2][:1].lower()] if parts else 0
    if not 0 < kb <= MAX_INT:
        raise Unreadable(f"{spec.at}: {spec.value!r} is none of small, large, any and no size (2MB, 1GB)")
    return kb


def has_cells(specs: GuestSpecs) -> bool:
    """Return whether the guest has NUMA cells: by their number, by dedicated processors, or by pages."""
    return (
        specs.get("hw:numa_nodes") is not None
        or _policy(specs) != "shared"
        or specs.of_flavor("hw:mem_page_size") is not None
    )


def _policy(specs: GuestSpecs) -> str:
    return specs.one_of("hw:cpu_policy", "shared", "dedicated", "mixed") or "shared"


def add_numa_cells(draft: QuestionDraft, specs: GuestSpecs, page_kb: int) -> int:
    """Add a request group for each NUMA cell of the guest, with pages of `page_kb`; return the number of
    cells, or 0 without a NUMA topology.
    """
    policy = _policy(specs)
    pinned = policy != "shared"
    dedicated = _dedicated(specs, policy)
    nodes = specs.get("hw:numa_nodes")
    one_more = specs.one_of("hw:emulator_threads_policy", "share", "isolate") == "isolate"
    threads = specs.one_of("hw:cpu_thread_policy", "prefer", "isolate", "require")
    for key, requested in (("hw:cpu_thread_policy", bool(threads)), ("hw:emulator_threads_policy", one_more)):
        if requested and not pinned:
            raise Unreadable(f"{_at(specs, key)}: only with hw:cpu_policy=dedicated or mixed")
    if nodes is None:
        for prefix in ("hw:numa_cpus.", "hw:numa_mem."):
            for _, spec in specs.numbered(prefix):
                raise Unreadable(f"{spec.at}: only with hw:numa_nodes")
    if not has_cells(specs):
        return 0
    cells = _cells(specs)
    _alone(draft, specs, page_kb)
    if threads == "require":
        draft.root_required[HYPERTHREADING] = _at(specs, "hw:cpu_thread_policy")
    elif threads == "isolate":
        draft.root_forbidden[HYPERTHREADING] = _at(specs, "hw:cpu_thread_policy")
    for number, cell in enumerate(cells):
        suffix = f"_numa{number}"
        draft.groups.setdefault(suffix, GroupDraft())
        pinned_cpus = (cell.cpus & dedicated).bit_count()
        draft.ask(suffix, "VCPU", cell.cpus.bit_count() - pinned_cpus)
        draft.ask(suffix, "PCPU", pinned_cpus + (one_more and number == 0))
        _ask_memory(draft, suffix, cell.memory_mb, page_kb, specs.where)
    if len(cells) > 1:
        draft.isolated = tuple(f"_numa{number}" for number in range(len(cells)))
    return len(cells)


def _dedicated(specs: GuestSpecs, policy: str) -> int:
    mask = specs.get("hw:cpu_dedicated_mask")
    if policy != "mixed":
        if mask is not None:
            raise Unreadable(f"{mask.at}: only with hw:cpu_policy=mixed")
        return -1 if policy == "dedicated" else 0  # -1: every bit is set
    at = _at(specs, "hw:cpu_policy")
    if mask is None:
        raise Unreadable(f"{at}: mixed needs hw:cpu_dedicated_mask, the list of dedicated processors")
    count = _cpu_count(specs)
    numbers = _numbers(mask, count)
    if not numbers or numbers.bit_count() == count:
        why = f"must name some and not all of the {count} processors ({specs.where}.vcpus), for {at} is mixed"
        raise Unreadable(f"{mask.at}: {mask.value!r} {why}")
    return numbers


def _cells(specs: GuestSpecs) -> list[GuestCell]:
    flavor, where, nodes = specs.flavor, specs.where, specs.get("hw:numa_nodes")
    count = 1 if nodes is None else nodes.whole(1, MAX_CELLS)
    vcpus = _cpu_count(specs)
    cpus, memory = dict(specs.numbered("hw:numa_cpus.")), dict(specs.numbered("hw:numa_mem."))
    for requested in (cpus, memory):
        for number, spec in requested.items():
            if number >= count:
                raise Unreadable(f"{spec.at}: there are {count} cells (hw:numa_nodes), the first is 0")
    if not cpus and not memory:
        for name, amount in (("vcpus", vcpus), ("memory_mb", flavor.memory_mb)):
            if amount % count:
                why = f"{amount} does not divide by {count} (hw:numa_nodes)"
                how = "assign processors and memory to cells with hw:numa_cpus.N and hw:numa_mem.N"
                raise Unreadable(f"{where}.{name}: {why}: {how}")
        each, size = vcpus // count, flavor.memory_mb // count
        return [GuestCell(_span(n * each, n * each + each - 1), size) for n in range(count)]
    for name, requested in (("hw:numa_cpus", cpus), ("hw:numa_mem", memory)):
        for number in range(count):
            if number not in requested:
                raise Unreadable(f"{where}.extra_specs: {name}.{number} is missing: set it for every cell")
    cells = [GuestCell(_numbers(cpus[n], vcpus), memory[n].whole(1)) for n in range(count)]
    union = reduce(or_, (cell.cpus for cell in cells))
    if sum(cell.cpus.bit_count() for cell in cells) != vcpus or union != _span(0, vcpus - 1):
        why = f"must name each of the {vcpus} processors ({where}.vcpus) once"
        raise Unreadable(f"{where}.extra_specs: hw:numa_cpus.0 to .{count - 1} {why}")
    together = sum(cell.memory_mb for cell in cells)
    if together != flavor.memory_mb:
        why = f"are {together} together, and {where}.memory_mb is {flavor.memory_mb}"
        raise Unreadable(f"{where}.extra_specs: hw:numa_mem.0 to .{count - 1} {why}")
    return cells


def _alone(draft: QuestionDraft, specs: GuestSpecs, page_kb: int) -> None:
    classes = {"VCPU", "PCPU", "MEMORY_MB", *([_page_class(page_kb)] if page_kb else [])}
    spec = specs.get("hw:numa_nodes") or specs.get("hw:cpu_policy") or specs.of_flavor("hw:mem_page_size")
    for suffix, group in draft.groups.items():
        for name in group.resources:
            if name in classes:
                also = f"{draft.where}.extra_specs['resources{suffix}:{name}'], and {spec.at if spec else ''}"
                raise Unreadable(f"{also}: request processors and memory by one of them")


def _ask_memory(draft: QuestionDraft, suffix: str, mb: int, page_kb: int, where: str) -> None:
    resources = draft.groups[suffix].resources
    if not page_kb:
        resources["MEMORY_MB"] = mb
        return
    if mb * 1024 % page_kb:
        raise Unreadable(f"{where}.memory_mb: {mb} of a cell is no multiple of its pages of {page_kb} KB")
    resources[_page_class(page_kb)] = mb * 1024 // page_kb
    draft.groups[""].resources.setdefault("MEMORY_MB", 0)  # 0: the guest's memory is requested as pages


def _cpu_count(specs: GuestSpecs) -> int:
    vcpus = specs.flavor.vcpus
    if not 0 < vcpus <= MAX_CPUS:
        raise Unreadable(f"{specs.where}.vcpus: {vcpus}: a guest with a topology has from 1 to {MAX_CPUS}")
    return vcpus


def _span(first: int, last: int) -> int:
    return (1 << last + 1) - (1 << first)


def _numbers(spec: GuestSpec, count: int) -> int:
    """Convert a list of processors such as `0-3,^1,6`, all below `count`, to a bit mask."""
    in_ = out = 0
    for part in spec.value.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise Unreadable(f"{spec.at}: {spec.value!r} is no list of processors (0-3,^1,6)")
        first, last = int(match[2]), int(match[3] or match[2])
        if last < first or last > MAX_CPUS:
            raise Unreadable(f"{spec.at}: {part.strip()!r} is no range of processors")
        if match[1]:
            out |= _span(first, last)
        else:
            in_ |= _span(first, last)
    named = in_ & ~out
    if strange := named >> count:
        first = count + (strange & -strange).bit_length() - 1
        raise Unreadable(f"{spec.at}: there is no processor {first}: the guest has {count}")
    return named


def _at(specs: GuestSpecs, key: str) -> str:
    spec = specs.get(key)
    assert spec is not None
    return spec.at
