"""Converts boot options to build requests, explains wrong options, and follows requests to their results."""

import asyncio
import dataclasses
import difflib
import math
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import msgspec

from berth.features import modules
from berth.operations.host_states import ByName, HostRequestOptions, names_listed
from berth.operations.publishing import PATIENCE, each_message, publish
from berth.settings import BadSetting
from bus import topics
from bus.clock import Clock
from bus.decisions import AlsoAsked
from bus.delivery.runner import Bus
from bus.errors import NOT_JSON, AnswerRefused, OperationRefused, Unavailable
from bus.messages import BuildConflict, BuildEnded, BuildRequested, BuildUnplaceable
from bus.parts import TYPES, Part, Parts, RequestParts, waits_for
from bus.queries import BuildStands, FindBuilds, FindWaiting, WaitingRequest
from bus.requests import Flavor, Hints, Image
from bus.vocabulary import seconds_of

_LONGEST_NAME = 200
_TRAIT = re.compile(r"[A-Z0-9_]{1,255}")
_TIME = re.compile(r"[0-9]{1,6}[smhd]")
_NEXT = re.compile(r",(?=[^,=]+=)")  # the commas between `name=value` parts, but no comma inside a value
_FIGURES = ("vcpus", "memory_mb", "disk_gb")
_LISTS = ("same_host", "different_host")
_HINTS = tuple(field.name for field in msgspec.structs.fields(Hints))


_METAL_NAME = "metal"
_DEFAULT_SIZE = {"vcpus": 1, "memory_mb": 512, "disk_gb": 1}
_METAL = {"resources:CUSTOM_BAREMETAL": "1"} | {
    f"resources:{name}": "0" for name in ("VCPU", "MEMORY_MB", "DISK_GB")
}


@dataclass(frozen=True, kw_only=True)
class BootOptions:
    """The options of a build request, as an operator enters them."""

    vcpus: int | None = None
    memory_mb: int | None = None
    disk_gb: int | None = None
    flavor: str = ""
    extra_spec: Sequence[str] = ()
    or_else: Sequence[str] = ()
    image: str = ""
    image_property: Sequence[str] = ()
    count: int = 1
    at_least: int = 0
    zone: str = ""
    cell: str = ""
    aggregate: Sequence[str] = ()
    not_aggregate: Sequence[str] = ()
    host: str = ""
    force_host: str = ""
    ignore_host: Sequence[str] = ()
    hint: Sequence[str] = ()
    prefer_trait: Sequence[str] = ()
    name: str = ""
    project: str = ""
    wait: str = ""  # how long the request may wait for a host, such as 30m; empty: not at all
    more: tuple[HostRequestOptions, ...] = ()  # the options of features


@cache
def feature_options() -> tuple[type[Any], ...]:
    """Return the classes of the options that features add, in the order of the list of features."""
    return tuple(module.OPTIONS for module in modules("boot_options"))


def options_named(**values: Any) -> BootOptions:
    """Return boot options with these values, also of options that features add."""
    more = []
    for class_ in feature_options():
        own = {field.name for field in dataclasses.fields(class_)} & values.keys()
        if own:
            more.append(class_(**{name: values.pop(name) for name in own}))
    return BootOptions(**values, more=tuple(more))


def names_of(options: BootOptions) -> ByName:
    """Return the aggregates that the boot options name, by name or by uuid, and the options of features."""
    return ByName(
        tuple(names_listed("--aggregate", given) for given in options.aggregate),
        tuple(name for given in options.not_aggregate for name in names_listed("--not-aggregate", given)),
        options.more,
    )


def boot_request(options: BootOptions) -> BuildRequested:
    """Convert boot options to a build request, without what the options name: the function `resolved` adds
    the uuids.
    """
    image, (hints, parts) = image_named(options.image, options.image_property), hints_given(options.hint)
    flavor, clock = described_flavor(options), Clock()
    request = BuildRequested(
        request=clock.uuid(),
        instances=tuple(clock.uuid() for _ in range(options.count)),
        flavor=flavor,
        image=image,
        zone=options.zone,
        cell=options.cell,
        or_else=tuple(flavor_instead(flavor, alternative) for alternative in options.or_else),
        at_least=options.at_least,
        wanted_host=options.host,
        forced_host=options.force_host,
        ignore_hosts=tuple(options.ignore_host),
        hints=hints,
        parts=parts.having(*parts_given(RequestParts, wait=options.wait)),
        preferred_traits=weights_given(options.prefer_trait),
        name=options.name,
    )
    request = msgspec.structs.replace(request, project=options.project or request.project)
    for more in options.more:
        request = more.requested(request)
    return request


def parts_given(owner: type[Parts], **fields: Any) -> list[Part]:
    """Return the parts of features from options that clients may write like fields of the kernel. Options
    that are not given are left out; BadSetting is raised for an option that no feature in the list has.
    """
    given = {name: value for name, value in fields.items() if value}
    if missing := given.keys() - TYPES.flat_parts(owner):
        raise BadSetting(f"--{min(missing)}: no feature of this berth has this option")
    return TYPES.read_flat(owner, given)


def described_flavor(options: BootOptions) -> Flavor:
    name = options.flavor
    described = {key: size for key in _FIGURES if (size := getattr(options, key)) is not None}
    if name and name != _METAL_NAME and not described and not options.extra_spec:
        meant = f" Did you mean {_METAL_NAME}?" if difflib.get_close_matches(name, [_METAL_NAME]) else ""
        raise BadSetting(
            f"--flavor {name}: berth stores no flavors; only `{_METAL_NAME}` is known by its name."
            f"{meant} Describe the flavor with --vcpus, --memory-mb, --disk-gb or --spec"
        )
    metal = _METAL if name == _METAL_NAME else {}
    specs = {**metal, **pairs("--extra-spec", options.extra_spec)}
    return Flavor(name=name or "custom", extra_specs=specs, **(_DEFAULT_SIZE | described))


def image_named(name: str, properties: Sequence[str]) -> Image | None:
    """Return a request's image with the given name and properties, or None if the name is empty."""
    if properties and not name:
        raise BadSetting("--image-property is of an image: name it with --image")
    return Image(name=name, properties=pairs("--image-property", properties)) if name else None


def is_time(text: str) -> bool:
    """Return whether a text is a duration, such as 90s or 30m."""
    return bool(_TIME.fullmatch(text))


def seconds_since(since: str) -> float:
    """Return the seconds of the option --since, such as 30m; raise BadSetting if it is no duration."""
    return duration("--since", since)


def duration(option: str, given: str) -> float:
    """Return the seconds of an option's value, such as 30m; raise BadSetting if it is no duration."""
    if not is_time(given):
        raise BadSetting(f"{option} {given}: takes a time (90s, 30m, 12h, 7d)")
    return seconds_of(given)


def waiting_time(wait: str | None) -> str:
    """Return the longest wait for capacity from the option --wait, as text such as 30m; empty without it."""
    if wait and not is_time(wait):
        raise BadSetting(f"--wait {wait}: takes a time (90s, 30m, 12h, 7d), or nothing to follow it only")
    return wait or ""


def pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    found = [text.partition("=") for text in given]
    for text, (key, equals, _) in zip(given, found, strict=True):
        if not key or not equals:
            raise BadSetting(f"{option} takes KEY=VALUE, not {text!r}")
    return {key: value for key, _, value in found}


def hints_given(given: Sequence[str]) -> tuple[Hints, RequestParts]:
    """Parse scheduler hints like `same_host=UUID`, which may be repeated, or `query=["=", "$zone", "a"]`."""
    known_hints = (*_HINTS, *TYPES.flat_parts(RequestParts, "hints"))
    hints: dict[str, str | list[str]] = {}
    for text in given:
        ((key, value),) = pairs("--hint", [text]).items()
        if key not in known_hints:
            like = difflib.get_close_matches(key, known_hints, n=1)
            meant = f", did you mean {like[0]}?" if like else ""
            listed = ", ".join(known_hints)
            raise BadSetting(f"--hint {key}: there is no such hint{meant}; there are: {listed}")
        if key in _LISTS:
            known = hints.setdefault(key, [])
            assert isinstance(known, list)
            known += [_instance(key, part.strip()) for part in value.split(",")]
        elif key in hints:
            raise BadSetting(f"--hint {key}: is given twice")
        else:
            hints[key] = value
    try:
        parts = TYPES.read_flat(RequestParts, {"hints": hints})
        return msgspec.convert(hints, Hints), RequestParts(*parts)
    except ValueError as problem:
        raise BadSetting(f"--hint: {problem}") from None


def flavor_instead(flavor: Flavor, given: str) -> Flavor:
    """Return an alternative flavor: from a JSON file, or `flavor` with changes such as
    `vcpus=2,hw:numa_nodes=` (empty: no such extra spec).
    """
    if "=" not in given:
        return flavor_in_file("--or-else", given)
    changed = changed_flavor("--or-else", flavor, given)
    name = changed.name or f"{flavor.name} with {given}"[:_LONGEST_NAME]
    return msgspec.structs.replace(changed, name=name)


def flavor_in_file(option: str, path: str) -> Flavor:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Flavor)
    except OSError as problem:
        raise BadSetting(f"{option} {path}: neither KEY=VALUE nor a file: {problem.strerror}") from None
    except NOT_JSON as problem:
        raise BadSetting(f"{option} {path}: no flavor in JSON: {problem}") from None


def changed_flavor(option: str, flavor: Flavor, given: str) -> Flavor:
    """Return `flavor` with the changes in a text such as `vcpus=2,hw:numa_nodes=`. The result has the name in
    the text, or no name.
    """
    figures: dict[str, int] = {}
    name, specs = "", dict(flavor.extra_specs)
    for key, value in pairs(option, _NEXT.split(given)).items():
        if key in _FIGURES:
            if not value.isdecimal():
                raise BadSetting(f"{option} {key}={value}: takes a whole number")
            figures[key] = int(value)
        elif key == "name":
            name = value
        elif ":" not in key and (like := difflib.get_close_matches(key, _FIGURES, n=1, cutoff=0.8)):
            raise BadSetting(f"{option} {key}=: did you mean {like[0]}=?")
        elif value:
            specs[key] = value
        elif specs.pop(key, None) is None:
            raise BadSetting(f"{option} {key}=: the flavor has no such extra spec to leave out")
    return msgspec.structs.replace(flavor, name=name, extra_specs=specs, **figures)


def weights_given(given: Sequence[str]) -> dict[str, float]:
    """Parse the weights of preferred traits: `TRAIT` has the weight 1, `TRAIT=2.5` has the weight 2.5."""
    found = {}
    for text in given:
        name, _, number = text.partition("=")
        try:
            weight = float(number or 1)
        except ValueError:
            weight = math.nan
        if not math.isfinite(weight) or not weight:
            raise BadSetting(f"--prefer-trait {text}: {number!r} is not a weight: a number other than 0")
        if not _TRAIT.fullmatch(name):
            raise BadSetting(f"--prefer-trait {text}: {name!r} is no trait (A to Z, 0 to 9, _)")
        found[name] = weight
    return found


def _instance(hint: str, given: str) -> str:
    try:
        return str(uuid.UUID(given))
    except ValueError:
        raise BadSetting(f"--hint {hint}: {given!r} is not the uuid of an instance") from None


def recorded_request(build: BuildStands) -> BuildRequested:
    """Reconstruct a build's request from the cell's record, with the flavor that was built."""
    placed, record = build.placed, build.placed.decision.record
    asked = (record.asked if record is not None else None) or AlsoAsked()
    fields = {name: getattr(asked, name) for name in AlsoAsked.__struct_fields__}
    for name in ("hints", "parts"):
        if fields[name] is None:
            del fields[name]
    spec = placed.spec
    request = BuildRequested(
        request=placed.request, instances=(placed.build,), flavor=spec.flavor, image=spec.image,
        project=spec.project, user=spec.user, alternates=0,
    )  # fmt: skip
    request = msgspec.structs.replace(request, **fields)
    asked_parts = [part.asked for part in placed.parts if part.asked is not None]
    return msgspec.structs.replace(request, parts=request.parts.having(*asked_parts))


SECONDS = 5.0  # time limit for the cell's answer about a decision
_POLL_SECONDS = 1.0  # between two checks of a waiting request


class BootListener(Protocol):
    """The interface of an object that receives a build request's progress: waiting, unplaceable, ended."""

    async def ended(self, build_ended: BuildEnded) -> None: ...

    def unplaceable(self, refusal: BuildUnplaceable) -> None: ...

    def waits(self, waiting: WaitingRequest) -> None: ...


async def follow_boot(bus: Bus, request: BuildRequested, timeout: float, listener: BootListener) -> int:
    """Publish a build request, report its progress to `listener` until all builds have ended, and return how
    many became active.
    """
    ends = await bus.listen(topics.BUILD_ENDED.at(reply_to=request.reply_to))
    unplaceable = await bus.listen(topics.BUILD_UNPLACEABLE.at(reply_to=request.reply_to))
    conflicts = await bus.listen(topics.BUILD_CONFLICT.at(reply_to=request.reply_to))
    received: asyncio.Queue[BuildEnded | BuildUnplaceable | BuildConflict] = asyncio.Queue()
    await publish(bus, request, patience=min(timeout, PATIENCE))
    active, open_, conflict = 0, set(request.instances), ""
    try:
        async with asyncio.timeout(timeout), asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(each_message(ends, received.put_nowait)),
                group.create_task(each_message(unplaceable, received.put_nowait)),
                group.create_task(each_message(conflicts, received.put_nowait)),
                group.create_task(_report_waits(bus, request, listener)),
            ]
            while open_ and not conflict:
                message = await received.get()
                if isinstance(message, BuildConflict):
                    conflict = message.reason
                elif isinstance(message, BuildUnplaceable):
                    open_ -= set(message.instances)
                    listener.unplaceable(message)
                elif message.build in open_:
                    open_.discard(message.build)
                    active += message.status == "active"
                    await listener.ended(message)
            for task in tasks:
                task.cancel()
    except TimeoutError:
        raise OperationRefused(
            f"not waiting any longer: {', '.join(sorted(open_))} did not end within {timeout:g} s"
        ) from None
    if conflict:
        raise OperationRefused(conflict)
    return active


async def _report_waits(bus: Bus, request: BuildRequested, listener: BootListener) -> None:
    """Report the queue position of a waiting request to the listener, repeatedly until cancelled."""
    while waits_for(request.parts):
        await asyncio.sleep(_POLL_SECONDS)
        try:
            found = await bus.asker(topics.WAITING)(FindWaiting(requests=(request.request,)))
        except (Unavailable, AnswerRefused):
            continue
        for waiting in found.waiting:
            listener.waits(waiting)


async def notes_of(bus: Bus, ended: BuildEnded) -> list[str]:
    """Return the notes in an ended build's decision record about ignored parts of the request."""
    find = bus.asker(topics.FIND_BUILDS, timeout=SECONDS)
    found = await find(FindBuilds(cell=ended.cell, builds=(ended.build,)))
    return [note for build in found.builds for note in build.placed.decision.notes]
