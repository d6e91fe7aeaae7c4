"""All rules and weighers for operators: what each decides, and its options."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from scheduler_worker.core.policy import ChoicePolicy, Options, Own, options_of, rules_named, weighers_named
from scheduler_worker.core.rules import RULES, RULES_CALLED, RULES_OF_PLACEMENT
from scheduler_worker.core.weighing import WEIGHERS, WEIGHERS_CALLED, WEIGHERS_OF_OTHERS

# accepted names that need no rule here, with the reason
NEEDLESS: Mapping[str, str] = {**RULES_OF_PLACEMENT, **WEIGHERS_OF_OTHERS}


class Choosable(msgspec.Struct, frozen=True, kw_only=True):
    """A rule or a weigher as it may be chosen, and as it is now."""

    name: str
    says: str
    on: bool
    options: dict[str, Any]  # as they are in force
    called: tuple[str, ...] = ()  # its names in other schedulers
    multiplier: float | None = None  # of a weigher


def all_rules(policy: ChoicePolicy, options: Options, own: Own) -> list[Choosable]:
    """Return the enabled filters in their order, then all other filters."""
    names = [rule.name for rule in policy.rules]
    own, options = _as_made(own, options, rules_named)
    return [
        Choosable(
            name=name,
            says=_sentence(made),
            on=name in names,
            options=_in_force(made, options.get(name, {})),
            called=_called(name, RULES_CALLED),
        )
        for name, made in _there({**dict.fromkeys(names), **RULES}, RULES, own)
    ]


def all_weighers(policy: ChoicePolicy, options: Options, own: Own) -> list[Choosable]:
    """Return the enabled weighers, then all other weighers."""
    multipliers = {weigher.name: weigher.multiplier for weigher in policy.weighers}
    own, options = _as_made(own, options, weighers_named)
    return [
        Choosable(
            name=name,
            says=_sentence(made),
            on=bool(multipliers.get(name)),
            options=_in_force(made, options.get(name, {})),
            called=_called(name, WEIGHERS_CALLED),
            multiplier=multipliers[name] if name in multipliers else made().multiplier,
        )
        for name, made in _there({**multipliers, **WEIGHERS}, WEIGHERS, own)
    ]


def _as_made(own: Own, options: Options, named: Callable[..., Any]) -> tuple[Own, Options]:
    names = {name: named((name,), options, own)[0].name for name in own}
    told = {names[name]: options[name] for name in own if name in options}
    return {names[name]: made for name, made in own.items()}, {**options, **told}


def _there(
    names: Iterable[str], ours: Mapping[str, Callable[..., Any]], own: Own
) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in names:
        yield name, own.get(name) or ours[name]


def _sentence(made: Callable[..., Any]) -> str:
    return " ".join((inspect.getdoc(made) or "").split("\n\n")[0].split())


def _in_force(made: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {option: given.get(option, default) for option, default in options_of(made).items()}


def _called(name: str, called: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple([one for one, names in called.items() if name in names and one[0].isupper()])
