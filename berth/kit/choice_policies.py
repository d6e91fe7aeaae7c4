"""Converts settings to the scheduler's configuration: filters, weighers, and options for build requests."""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NoReturn

from berth import features
from berth.settings import BadSetting, Settings, settings_by_name
from bus.feature import Refuse
from scheduler_worker import PROFILES, BadChoice, ChoicePolicy, RequestOptions, default_profile, with_profile

features.add_filters()


def choice_policy(settings: Settings) -> ChoicePolicy:
    """Return the filters and weighers that the settings enable; raise BadSetting for a wrong setting."""

    def refuse(name: str, why: str) -> NoReturn:
        raise BadSetting(f"{name} = {settings_by_name(settings)[name]!r}: {why}")

    return chosen(settings, refuse)


def chosen(settings: Settings, refuse: Refuse) -> ChoicePolicy:
    """Return the filters and weighers that the settings enable; call `refuse` for each wrong setting."""
    wanted = settings.scheduler
    custom: dict[str, Callable[..., Any]] = {}
    for name, functions in (("scheduler_filters", wanted.filters), ("scheduler_weighers", wanted.weighers)):
        try:
            custom |= extension_functions(functions)
        except BadChoice as problem:
            refuse(name, str(problem))
    made = ChoicePolicy()
    profile = _profile(settings)
    if wanted.profile not in ("", profile):
        refuse("placement_profile", f"no such profile; there are: {', '.join(PROFILES)}")
    for name, filters, weighers, options in (
        ("scheduler_filters", wanted.filters, {}, {}),
        ("scheduler_weighers", (), wanted.weighers, {}),
        ("scheduler_rules", wanted.filters, wanted.weighers, rule_options(settings)),
    ):
        try:
            made = ChoicePolicy.from_names(
                filters or None, weighers or None, options=options, custom=custom, profile=profile
            )
        except BadChoice as problem:
            option = f"{problem.name}.{problem.option}: " if problem.option else ""
            refuse(name, f"{option}{problem}")
    return replace(made, cells=frozenset(settings.cell_names), subset=wanted.subset, near=wanted.near)


def rule_options(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the options of filters and weighers, by the name of the filter or weigher."""
    given = with_profile(_profile(settings), settings.scheduler.rules)
    options_of = {name: dict(options) for name, options in given.items()}
    for name, options in features.rule_options(settings).items():
        options_of[name] = {**options, **options_of.get(name, {})}
    return options_of


def _profile(settings: Settings) -> str:
    """Return the name of the profile in force."""
    profile = settings.scheduler.profile
    return profile if profile in PROFILES else default_profile()


def extension_functions(names: Iterable[str]) -> dict[str, Callable[..., Any]]:
    """Import an operator's own filters and weighers; return them by their names, `module:function`."""
    return {name: _function(name) for name in (name.removeprefix("+") for name in names) if ":" in name}


def _function(name: str) -> Callable[..., Any]:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except Exception as problem:  # an operator's code may raise anything
        raise BadChoice(f"cannot import {module!r}: {type(problem).__name__}: {problem}", name) from None
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise BadChoice(f"there is no function {path!r} in {module!r}", name)
    return found  # type: ignore[no-any-return]


def request_options(settings: Settings) -> RequestOptions:
    """Return the options for decoding build requests, from settings already checked."""
    requests = settings.requests
    return RequestOptions(
        readers=features.request_readers(settings),
        max_wait=requests.max_wait,
        unscoped=any(rule.reads_unscoped for rule in choice_policy(settings).rules),
        tenant_aggregates=requests.tenant_aggregates != "off",
        tenant_aggregates_required=requests.tenant_aggregates == "required",
        isolate_aggregates=requests.isolate_aggregates,
    )
