"""Creates the policy of filters and weighers from the names and options in the settings."""

import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property, partial
from math import isfinite
from operator import attrgetter
from typing import Any, get_type_hints

import msgspec
import numpy as np

from bus import parts
from bus.messages import BuildRequested
from scheduler_worker.core.rule import (
    ITS_OWN,
    Alternative,
    HostFacts,
    Number,
    Rule,
    View,
    Weigher,
    WeightedCandidates,
    as_anybodys,
    guarded,
)
from scheduler_worker.core.rules import DEFAULT_RULES, HINTS, RULES, RULES_CALLED, RULES_OF_PLACEMENT

# The built-in weighers. A function with the name of the weigher makes it; the arguments are its options.
#
# A negative multiplier reverses a preference. An attribute that a host does not report counts as 0.


Options = Mapping[str, Mapping[str, Any]]  # name of a filter or weigher → its options
FEW_FAILURES = 3.0
# Other accepted names (of Nova, or former ones) → weighers. A module path before a class name is ignored.
WEIGHERS_CALLED: Mapping[str, tuple[str, ...]] = {
    "RAMWeigher": ("ram",),
    "CPUWeigher": ("cpu",),
    "DiskWeigher": ("disk",),
    "IoOpsWeigher": ("io_ops",),
    "BuildFailureWeigher": ("build_failure",),
    "free_ram": ("ram",),
    "free_vcpu": ("cpu",),
    "builds_in_flight": ("io_ops",),
}
# Weighers of Nova that berth does not need → why.
WEIGHERS_OF_OTHERS: Mapping[str, str] = {
    "CrossCellWeigher": "it is about moves between cells; a build may go to any cell, and none is preferred"
}


def _free(resource_class: str) -> Callable[[View, Alternative], Number]:
    return lambda view, alternative: view.free(resource_class)


def _packs(multiplier: float) -> bool:
    """Return whether a weigher of free amounts prefers hosts with little free capacity."""
    return multiplier < 0


def ram() -> Weigher:
    """Prefer hosts with more free MEMORY_MB, which spreads builds; a negative multiplier packs them."""
    return Weigher("ram", _free("MEMORY_MB"), 1.0, lowest=0.0, packs=_packs)


def cpu() -> Weigher:
    """Prefer hosts with more free VCPU."""
    return Weigher("cpu", _free("VCPU"), 1.0, lowest=0.0, packs=_packs)


def disk() -> Weigher:
    """Prefer hosts with more free DISK_GB."""
    return Weigher("disk", _free("DISK_GB"), 1.0, lowest=0.0, packs=_packs)


def io_ops() -> Weigher:
    """Prefer hosts with fewer builds in progress, as their agents report them."""

    def value(view: View, alternative: Alternative) -> Number:
        # Where no agent reports, it is unknown when the builds that were just sent there end.
        return view.where(view.known(view.fact("reported")), view.fact("building"), 0.0)

    return Weigher("io_ops", value, -1.0, lowest=0.0)


def load() -> Weigher:
    """Prefer hosts that report a lower load, less strongly if all loads are within 1 of each other."""
    return Weigher("load", lambda view, alternative: view.fact("load", 0.0), -1.0, least_span=1.0)


def build_failure() -> Weigher:
    """Prefer hosts with fewer recent failed builds; one failure costs 2 points of the score, three cost 6."""
    return Weigher(
        "build_failure", lambda view, alternative: -view.fact("failures"), 6.0, least_span=FEW_FAILURES
    )


def preferred_traits() -> Weigher:
    """Prefer hosts with the request's preferred traits; this counts more than ram, cpu and disk."""

    def value(view: View, alternative: Alternative) -> Number:
        return sum(view.has(trait) * by for trait, by in alternative.preferred.items())

    return Weigher("preferred_traits", value, 4.0, reads=("preferred",))


def preferred_resources() -> Weigher:
    """Prefer hosts with the request's preferred amounts free, by weight; half of an amount counts half."""

    def value(view: View, alternative: Alternative) -> Number:
        return sum(
            _share(view.free(name) / amount) * by
            for name, (amount, by) in alternative.preferred_amounts.items()
        )

    return Weigher("preferred_resources", value, 4.0, reads=("preferred_amounts",))


def _share(amount: Number) -> Number:
    return min(amount, 1.0) if isinstance(amount, float) else np.minimum(amount, 1.0)


def image_cached() -> Weigher:
    """Prefer hosts that have cached the image, to save the download if hosts are about equal."""

    def value(view: View, alternative: Alternative) -> Number:
        return view.cached(alternative.request.image.name) if alternative.request.image is not None else 0.0

    return Weigher("image_cached", value, 0.25, reads=("image",))


WEIGHERS: Mapping[str, Callable[..., Weigher]] = {
    made.__name__: made
    for made in (
        ram,
        cpu,
        disk,
        io_ops,
        load,
        build_failure,
        preferred_traits,
        preferred_resources,
        image_cached,
    )
}


Names = Iterable[str] | Mapping[str, float] | None  # None: the defaults
Made = Callable[..., Any]  # a function that makes a filter or weigher, or is itself one
Custom = Mapping[str, Made]  # an operator's functions by their names `module:function`

EVERYTHING = "*"  # stands for all fields of a request, if a function does not declare which it reads
_encode = parts.encoder(order="deterministic").encode
# names of Nova that have no effect here, with the reason
NEEDLESS: Mapping[str, str] = {**RULES_OF_PLACEMENT, **WEIGHERS_OF_OTHERS}


class BadChoice(ValueError):
    """The error for an unknown filter, weigher or option in the settings; the text lists the known names."""

    def __init__(self, why: str, name: str = "", option: str = "") -> None:
        super().__init__(why)
        self.name, self.option = name, option  # unknown name; or filter or weigher, and unknown option


@dataclass(frozen=True, kw_only=True)
class PlacementProfile:
    """A set of multipliers and options by which hosts are chosen, for operators who do not set their own."""

    says: str
    is_default: bool = False  # whether it is used without the setting; at most one is
    multipliers: Mapping[str, float] = field(default_factory=dict)  # by weigher; unknown ones are ignored
    options: Options = field(default_factory=dict)


SPREAD = "spread"
# name → profile; features add further ones
PROFILES: dict[str, PlacementProfile] = {
    SPREAD: PlacementProfile(
        says="prefers hosts with more free memory, processors and disk, as Nova does by default"
    )
}


def default_profile() -> str:
    """Return the name of the profile that is used without a setting."""
    return next((name for name, profile in PROFILES.items() if profile.is_default), SPREAD)


@dataclass(frozen=True, kw_only=True)
class MoreRules:
    """Filters or weighers of a feature."""

    made: tuple[Made, ...]  # functions that make them; each has the name of its filter or weigher
    before: str = ""  # the one before which they are applied; "": after all others
    enabled: bool = True  # whether they are enabled by default
    called: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # name in another scheduler → names
    hints: Mapping[str, str] = field(default_factory=dict)  # scheduler hint → name of its filter
    profiles: Mapping[str, PlacementProfile] = field(default_factory=dict)
    # filter → whether options of it, or of the weigher of this name, enable it
    enabled_by: Mapping[str, Callable[[Mapping[str, Any]], bool]] = field(default_factory=dict)


@dataclass(frozen=True)
class RuleBook:
    """All filters, or all weighers, that settings can name: those of the kernel, and those that features add
    before the process makes a policy.
    """

    word: str
    type: type[Rule] | type[Weigher]
    built_in: dict[str, Made]
    default: list[str]  # names of the enabled ones, in the order in which they are applied
    called: dict[str, tuple[str, ...]]  # name in another scheduler → names here
    needless: Mapping[str, str]
    from_plain: Made
    hints: dict[str, str] = field(default_factory=dict)  # as in MoreRules
    enabled_by: dict[str, Callable[[Mapping[str, Any]], bool]] = field(default_factory=dict)

    def add(self, more: MoreRules) -> None:
        """Add filters or weighers of a feature."""
        names = {made.__name__: made for made in more.made}
        assert names.keys().isdisjoint(self.built_in), names
        known = list(self.built_in.items())
        at = list(self.built_in).index(more.before) if more.before else len(known)
        self.built_in.clear()
        self.built_in.update((*known[:at], *names.items(), *known[at:]))
        if more.enabled:
            at = self.default.index(more.before) if more.before else len(self.default)
            self.default[at:at] = names
        self.called.update(more.called)
        self.hints.update(more.hints)
        PROFILES.update(more.profiles)
        self.enabled_by.update(more.enabled_by)


def _plain_weigher(name: str, value: Callable[[HostFacts, Alternative], float]) -> Weigher:
    def of_each(view: View, alternative: Alternative) -> Any:
        return view.each(lambda host: value(host, alternative))

    return Weigher(name, of_each, reads=(EVERYTHING,))


FILTER_BOOK = RuleBook(
    "filter",
    Rule,
    dict(RULES),
    [*DEFAULT_RULES],
    dict(RULES_CALLED),
    RULES_OF_PLACEMENT,
    partial(Rule, reads=(EVERYTHING,)),
    dict(HINTS),
)
WEIGHER_BOOK = RuleBook(
    "weigher", Weigher, dict(WEIGHERS), [*WEIGHERS], dict(WEIGHERS_CALLED), WEIGHERS_OF_OTHERS, _plain_weigher
)


def filter_names(names: Iterable[str] | None, options: Options) -> list[str]:
    """Return the names of the enabled filters: `names`, or the default filters (None), or the default filters
    with the changes `+NAME` and `-NAME`. With the default filters, a setting of a filter also enables this
    filter.
    """
    of_options = [
        name for name in options if name in FILTER_BOOK.built_in and name not in FILTER_BOOK.enabled_by
    ]
    default = [*dict.fromkeys((*FILTER_BOOK.default, *of_options))]
    return default if names is None else with_changes(default, names)


def with_changes(enabled: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return `names` or, if they are changes, the enabled filters without each `-NAME` and with each `+NAME`.
    Raise BadChoice if a removed filter is not enabled, or if only some names are changes.
    """
    given = [*names]
    if not _are_changes("filter", given):
        return given
    removed: set[str] = set()
    for name in [name[1:] for name in given if name[0] == "-"]:
        ours = {name} if name in enabled else set(_ours(FILTER_BOOK, name, {}))
        if not ours <= {*enabled}:
            raise BadChoice(f"-{name}: this filter is not enabled; enabled are: {', '.join(enabled)}", name)
        removed |= ours
    left = [name for name in enabled if name not in removed]
    return [*left, *(name[1:] for name in given if name[0] == "+")]


def _are_changes(kind: str, names: Sequence[str]) -> bool:
    plain = [name for name in names if name[:1] not in ("+", "-")]
    if plain and len(plain) < len(names):
        raise BadChoice(
            f"{plain[0]!r} has no + or -, and other names have: either list all {kind}s, or only changes of"
            " the default ones",
            plain[0],
        )
    return bool(names) and not plain


def rules_named(names: Iterable[str], options: Options, custom: Custom) -> tuple[Rule, ...]:
    """Return the filters with the given names in their sequence."""
    found: dict[str, Rule] = {}
    for _, rule in _named(FILTER_BOOK, names, options, custom):
        found.setdefault(rule.name, rule)
    return tuple(found.values())


def weighers_named(
    names: Names, options: Options, custom: Custom, profile: PlacementProfile = PROFILES[SPREAD]
) -> tuple[Weigher, ...]:
    """Return the weighers named in `names` (None: those of the profile); a mapping gives each a multiplier.
    Names that begin with + change or extend the weighers of the profile.
    """
    found: dict[str, Weigher] = {}
    multipliers = dict(names) if isinstance(names, Mapping) else {}
    profiled = {} if names and not _are_changes("weigher", [*names]) else profile.multipliers
    given = [*WEIGHER_BOOK.default] if names is None else [*names]
    if _are_changes("weigher", given):
        if removed := [name for name in given if name[0] == "-"]:
            raise BadChoice(
                f"{removed[0]}: the multiplier 0 disables a weigher: +{removed[0][1:]}", removed[0]
            )
        multipliers = {name.removeprefix("+"): by for name, by in multipliers.items()}
        given = [*WEIGHER_BOOK.default, *(name[1:] for name in given)]
    for name, weigher in _named(WEIGHER_BOOK, given, options, custom):
        usual = profiled.get(weigher.name, weigher.multiplier)
        multiplier = multipliers.get(name, usual)
        if not isfinite(multiplier):
            raise BadChoice(f"{name}: {multiplier} is no multiplier: it must be finite", weigher.name)
        if multiplier < 0 and weigher.of_ways is not None:
            raise BadChoice(f"{name}: its multiplier is at least 0, not {multiplier:g}", weigher.name)
        found[weigher.name] = replace(weigher, multiplier=multiplier)
    return tuple(each for each in found.values() if each.multiplier or not each.is_slow)


def _named(
    kind: RuleBook, names: Iterable[str], options: Options, custom: Custom
) -> Iterator[tuple[str, Any]]:
    """Yield the filters or weighers with these names; a name of Nova may mean several."""
    for chosen in names:
        for name in _ours(kind, chosen, custom):
            yield (chosen, _made(kind, name, custom.get(name) or kind.built_in[name], options.get(name, {})))


def _ours(kind: RuleBook, chosen: str, custom: Custom) -> tuple[str, ...]:
    """Return the names here of a filter or weigher, which may be named as in another scheduler."""
    last = chosen.rsplit(".", 1)[-1]
    if chosen in kind.built_in or chosen in custom:
        return (chosen,)
    if last in kind.called or last in kind.needless:
        return kind.called.get(last, ())
    nearest = _nearest(chosen, {*kind.built_in, *kind.called, *kind.needless})
    known = f"known {kind.word}s: {', '.join(kind.built_in)}"
    raise BadChoice(f"unknown {kind.word} {chosen!r}{nearest}; {known}", chosen)


def check_options(options: Options, custom: Custom) -> None:
    """Raise BadChoice for an unknown filter, weigher or option; a filter and a weigher may share options."""
    known = {*FILTER_BOOK.built_in, *WEIGHER_BOOK.built_in, *custom}
    for name, given in options.items():
        if name not in known:
            raise BadChoice(f"there is no rule or weigher {name!r}{_nearest(name, known)}", name)
        every = (FILTER_BOOK.built_in, WEIGHER_BOOK.built_in, custom)
        made = [functions[name] for functions in every if name in functions]
        options_known = sorted({option for function in made for option in options_of(function)})
        for option, value in given.items():
            if option not in options_known:
                available = f"there are: {', '.join(options_known)}" if options_known else "it has none"
                raise BadChoice(f"no such option{_nearest(option, options_known)}; {available}", name, option)
            if option.startswith("max_") and str(value).startswith("-"):  # a setting may be a text
                raise BadChoice(f"{value} is less than 0: no host would ever do", name, option)


def options_of(made: Made) -> dict[str, Any]:
    """Return the parameters of a filter or weigher that have a default, which settings may change."""
    parameters = inspect.signature(made).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def with_profile(profile: str, options: Options) -> dict[str, Mapping[str, Any]]:
    """Return the options of filters and weighers: the given ones, and else those of a profile."""
    given: dict[str, Mapping[str, Any]] = dict(options)
    for name, of_profile in PROFILES[profile].options.items():
        given[name] = {**of_profile, **given.get(name, {})}
    return given


def _nearest(name: str, known: Iterable[str]) -> str:
    by_small = {known_name.lower(): known_name for known_name in known}
    close = get_close_matches(name.lower(), by_small, 1, 0.6)
    return f", did you mean {by_small[close[0]]!r}?" if close else ""


def _made(kind: RuleBook, name: str, made: Made, given: Mapping[str, Any]) -> Any:
    """Make a filter or weigher with its options; raise BadChoice if it is none, or reads an unknown field."""
    needed = [
        parameter
        for parameter in inspect.signature(made).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(needed) >= 2:  # with two or more arguments, the function is itself the filter or weigher
        return _guarded(kind.from_plain(name, made))
    found = made(**_options(name, made, given))
    if not isinstance(found, kind.type):
        raise BadChoice(f"{name!r} makes a {type(found).__name__}, not a {kind.type.__name__}", name)
    for read in found.reads:
        if read.removeprefix("request.") in ITS_OWN and read != "request":
            why = "which belongs to one request: the facts that rules read are shared"
            raise BadChoice(f"{name!r} reads {read}, {why}", name)
        field_of = read.partition(".")[0]
        if (
            read != EVERYTHING
            and not hasattr(Alternative, field_of)
            and not hasattr(BuildRequested, field_of)
        ):
            raise BadChoice(f"{name!r} reads {read}, which no request has", name)
    return _guarded(found)


def _guarded(found: Rule | Weigher) -> Rule | Weigher:
    """Return a filter or weigher whose functions raise RuleError with its name if they fail."""
    if isinstance(found, Weigher):
        of_candidate = found.of_candidate and guarded(f"the weigher {found.name}", found.of_candidate)
        return replace(
            found,
            value=guarded(f"the weigher {found.name}", found.value, _no_number),
            of_ways=found.of_ways and guarded(f"the weigher {found.name}", found.of_ways),
            usable=found.usable and guarded(f"the weigher {found.name}", found.usable),
            of_candidate=of_candidate,
        )
    name = f"the filter {found.name}"
    return replace(
        found,
        refuses=guarded(name, found.refuses, _no_reason),
        admits=found.admits and guarded(name, found.admits, _no_number),
        concerns=guarded(name, found.concerns),
    )


def _no_reason(result: Any) -> str:
    """Return why the result of a filter is invalid; empty: it is a text or None."""
    return (
        "" if result is None or isinstance(result, str) else f"it returned {result!r:.100}, no text or None"
    )


_NUMBERS = frozenset((float, int, bool, np.float64, np.bool_))


def _no_number(result: Any) -> str:
    """Return why the result of a weigher is invalid; empty: it is a number or an array of numbers."""
    if type(result) in _NUMBERS:  # the usual types are recognised in a tenth of the time of isinstance
        return ""
    if isinstance(result, np.ndarray) and result.ndim <= 1 and result.dtype.kind in "biuf":
        return ""
    is_number = isinstance(result, int | float | np.bool_ | np.number)
    return "" if is_number else f"it returned {result!r:.100}, no number or array of numbers"


def _options(name: str, made: Made, given: Mapping[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(made)
    options = {}
    for option in options_of(made).keys() & given.keys():
        value, kind = given[option], hints.get(option, Any)
        if isinstance(value, str) and kind == Sequence[str]:
            value = [part.strip() for part in value.split(",") if part.strip()]
        try:
            options[option] = msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError as problem:
            raise BadChoice(f"{value!r}: {problem}", name, option) from None
    return options


@dataclass(frozen=True)
class ChoicePolicy:
    """The enabled filters and weighers with their options."""

    rules: tuple[Rule, ...] = field(default_factory=lambda: rules_named(FILTER_BOOK.default, {}, {}))
    weighers: tuple[Weigher, ...] = field(default_factory=lambda: weighers_named(None, {}, {}))
    # cells that the settings list; registered cells are added; None: all cells
    cells: frozenset[str] | None = None
    subset: int = 1  # number of best hosts from which one is drawn at random
    near: float = 0.0  # scores with at most this difference are equal; a hash decides between them
    custom: Custom = field(default_factory=dict)  # the operator's own filters and weighers
    profile: str = SPREAD  # whose multipliers and options apply to what the settings do not name

    @classmethod
    def from_names(
        cls,
        filters: Iterable[str] | None = None,
        weighers: Names = None,
        *,
        options: Options | None = None,
        custom: Custom | None = None,
        max_builds: int | None = None,
        profile: str = SPREAD,
    ) -> "ChoicePolicy":
        """Return the scheduling policy with the filters and weighers of the given names; None: the defaults.
        Names may be changes of the default ones (`filter_names`). `weighers` may be a mapping of weighers'
        names to multipliers. `options` is a mapping of filters' and weighers' names to their options.
        `max_builds` limits the builds in progress on a host.
        """
        if profile not in PROFILES:
            raise BadChoice(f"no such profile; there are: {', '.join(PROFILES)}", profile)
        given = with_profile(profile, options or {})
        if max_builds is not None:
            given["io_ops"] = {"max_io_ops_per_host": max_builds, **given.get("io_ops", {})}
        custom = custom or {}
        check_options(given, custom)
        rules = rules_named(filter_names(filters, given), given, custom)
        weighed = weighers_named(weighers, given, custom, PROFILES[profile])
        enabled = [name for name, enables in FILTER_BOOK.enabled_by.items() if enables(given.get(name, {}))]
        every = (*rules, *rules_named(enabled, given, custom))
        rules = tuple({each.name: each for each in every}.values())
        return cls(rules, weighed, custom=custom, profile=profile)

    def reads(self, name: str) -> bool:
        """Return whether an enabled filter or weigher reads this field of a request."""
        return any(read == EVERYTHING or read.partition(".")[0] == name for read in self._read)

    @property
    def packs(self) -> bool:
        """Return whether weighers prefer hosts with little free capacity now. If so, all schedulers choose
        the same few hosts: their claims compete, and alternates are soon full.
        """
        return any(packs(multiplier) for packs, multiplier in self._packing)

    @cached_property
    def _packing(self) -> list[tuple[Callable[[float], bool], float]]:
        return [(each.packs, each.multiplier) for each in self.weighers if each.packs and each.multiplier]

    def rules_for(self, alternative: Alternative) -> list[Rule]:
        """Return the filters that apply to a request. For a forced host only the filter `up` applies."""
        forced = alternative.request.forced_host
        return [rule for rule in self.rules if (rule.name == "up" if forced else rule.concerns(alternative))]

    def unheeded(self, request: BuildRequested) -> tuple[str, ...]:
        """Return a warning sentence for each scheduler hint of a request that no enabled filter reads."""
        on = {rule.name for rule in self.rules}
        given = [(hint, name) for hint, name in FILTER_BOOK.hints.items() if getattr(request.hints, hint)]
        off = [(hint, name) for hint, name in given if name not in on]
        return tuple(
            f"hints.{hint}: no rule uses it" + (f": the filter {name} is off" if name else "")
            for hint, name in off
        )

    def kind(self, alternative: Alternative) -> Hashable:
        """Return the equivalence class of a flavor of a request: a key that is equal for equal requests."""
        values = tuple([read(alternative) for read in self._reads])
        encoded = _encode((alternative.question, values))
        forced = bool(alternative.request.forced_host)
        hosts = alternative.same, alternative.different, alternative.current_roots
        return alternative.alternative_index, alternative.notes, forced, hosts, encoded

    @cached_property
    def of_candidates(self) -> WeightedCandidates:
        """Return the enabled weighers that compare a host's allocation candidates, with their multipliers."""
        return [
            (weigher.multiplier, weigher.of_candidate)
            for weigher in self.weighers
            if weigher.of_candidate is not None and weigher.multiplier
        ]

    @cached_property
    def of_ways(self) -> Sequence[Weigher]:
        """Return the enabled weighers of all hosts' allocation candidates."""
        return [weigher for weigher in self.weighers if weigher.of_ways is not None]

    @cached_property
    def _reads(self) -> tuple[Callable[[Alternative], Any], ...]:
        return tuple([_reader(name) for name in sorted(self._read)])

    @cached_property
    def _read(self) -> set[str]:
        read = {name for rule in self.rules for name in rule.reads}
        return read | {name for weigher in self.weighers for name in weigher.reads}


def _reader(name: str) -> Callable[[Alternative], Any]:
    if name == EVERYTHING:
        return lambda alternative: (as_anybodys(alternative.request), alternative.parts)
    path = attrgetter(name)
    if name.partition(".")[0] in Alternative.__dataclass_fields__:
        return path
    return lambda alternative: path(alternative.request)


class Choosable(msgspec.Struct, frozen=True, kw_only=True):
    """A filter or weigher that an operator can enable, with its current options."""

    name: str
    says: str
    on: bool
    options: dict[str, Any]  # the present options
    called: tuple[str, ...] = ()  # names of the filter or weigher in other schedulers
    multiplier: float | None = None  # the multiplier of a weigher; None: a filter


def all_rules(policy: ChoicePolicy, options: Options, custom: Custom) -> list[Choosable]:
    """Return all filters: the enabled filters in the configured order, then the disabled filters."""
    return _choosable(FILTER_BOOK, [rule.name for rule in policy.rules], options, custom)


def all_weighers(policy: ChoicePolicy, options: Options, custom: Custom) -> list[Choosable]:
    """Return all weighers, the enabled weighers first."""
    multipliers = {weigher.name: weigher.multiplier for weigher in policy.weighers}
    weighers = []
    for weigher in _choosable(WEIGHER_BOOK, [*multipliers], options, custom):
        known = weigher.name in multipliers
        multiplier = multipliers[weigher.name] if known else WEIGHER_BOOK.built_in[weigher.name]().multiplier
        enabled = known and bool(multiplier)
        weighers.append(msgspec.structs.replace(weigher, on=enabled, multiplier=multiplier))
    return weighers


def _choosable(kind: RuleBook, enabled: Sequence[str], options: Options, custom: Custom) -> list[Choosable]:
    """Describe the enabled filters or weighers, and those that could be enabled."""
    made, given = dict(kind.built_in), dict(options)
    for chosen, function in custom.items():
        [(_, found)] = _named(kind, (chosen,), options, custom)
        made[found.name] = function
        if chosen in options:
            given[found.name] = options[chosen]
    choosable = []
    for name in dict.fromkeys((*enabled, *kind.built_in)):
        ours = options_of(made[name])
        ours |= {option: value for option, value in given.get(name, {}).items() if option in ours}
        description = " ".join((inspect.getdoc(made[name]) or "").split("\n\n")[0].split())
        called = tuple([other for other, of in kind.called.items() if name in of and other[0].isupper()])
        on = name in enabled
        choosable.append(Choosable(name=name, says=description, on=on, options=ours, called=called))
    return choosable
