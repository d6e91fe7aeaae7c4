"""Converts settings to the scheduler's configuration: filters, weighers, and options for build requests."""

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from berth.features import add_filters
from berth.settings import BadSetting, Settings, by_name
from scheduler_worker import DEVICES, NUMA_POLICIES, BadChoice, ChoicePolicy, PciAlias, RequestOptions

add_filters()
Refuse = Callable[[str, str], None]  # the name of a setting, and what is wrong with it


def policy(settings: Settings) -> ChoicePolicy:
    """Return the filters and weighers that the settings enable; raise BadSetting for a wrong setting."""

    def refuse(name: str, why: str) -> NoReturn:
        raise BadSetting(f"{name} = {by_name(settings)[name]!r}: {why}")

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
    for name, filters, weighers, options in (
        ("scheduler_filters", wanted.filters, {}, {}),
        ("scheduler_weighers", (), wanted.weighers, {}),
        ("scheduler_rules", wanted.filters, wanted.weighers, rule_options(settings)),
    ):
        try:
            made = ChoicePolicy.from_names(filters or None, weighers or None, options=options, custom=custom)
        except BadChoice as problem:
            option = f"{problem.name}.{problem.option}: " if problem.option else ""
            refuse(name, f"{option}{problem}")
    return replace(made, cells=frozenset(settings.cell_names), subset=wanted.subset, near=wanted.near)


def rule_options(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the options of filters and weighers, by the name of the filter or weigher.

    The weigher `pci` also counts the resource classes of PCI aliases, unless the settings list its classes.
    """
    options_of = {name: dict(options) for name, options in settings.scheduler.rules.items()}
    aliases = [
        aliases_text.split()[0]
        for aliases_text in settings.requests.pci_aliases.values()
        if aliases_text.split()
    ]
    if aliases:
        classes = dict.fromkeys((*DEVICES, *aliases))
        options_of["pci"] = {"classes": list(classes), **options_of.get("pci", {})}
    return options_of


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


_WORD = re.compile(r"[A-Za-z0-9_-]{1,48}")
_NAME = re.compile(r"[A-Z0-9_]{1,255}")


def request_options(settings: Settings) -> RequestOptions:
    """Return the options for decoding build requests, such as PCI aliases, from settings already checked."""
    requests = settings.requests
    return RequestOptions(
        pci_aliases=pci_aliases(requests.pci_aliases),
        image_metadata_traits="metadata" in requests.image_traits,
        image_type_traits="type" in requests.image_traits,
        max_wait=requests.max_wait,
        unscoped=any(rule.reads_unscoped for rule in policy(settings).rules),
        tenant_aggregates=requests.tenant_aggregates != "off",
        tenant_aggregates_required=requests.tenant_aggregates == "required",
        isolate_aggregates=requests.isolate_aggregates,
    )


def pci_aliases(texts: Mapping[str, str]) -> dict[str, PciAlias]:
    """Return PCI aliases by name, from settings like `gpu = "CUSTOM_GPU CUSTOM_HBM numa=required"`."""
    return {name: _alias(name, value) for name, value in texts.items()}


def _alias(name: str, value: str) -> PciAlias:
    if not _WORD.fullmatch(name):
        raise ValueError(f"{name!r} is no name: up to 48 letters, digits, _ and -")
    parts = value.split()
    policies = [part.removeprefix("numa=") for part in parts if part.startswith("numa=")]
    names = [part for part in parts if not part.startswith("numa=")]
    strange = [repr(part) for part in names if not _NAME.fullmatch(part)]
    if not names or strange or len(policies) > 1:
        wrong = f"{name} has {strange[0] if strange else repr(value)}"
        raise ValueError(f"takes a resource class, traits, and once numa=POLICY: {wrong}")
    for policy in policies:
        if policy not in NUMA_POLICIES:
            raise ValueError(f"{name}: numa={policy} is none of {', '.join(NUMA_POLICIES)}")
    return PciAlias(names[0], tuple(names[1:]), NUMA_POLICIES[policies[0]] if policies else "legacy")
