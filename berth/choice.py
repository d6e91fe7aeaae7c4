"""Settings → what the scheduler chooses by: rules and weighers by name, an operator's own among them."""

import importlib
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from berth.settings import BadSetting, Settings, by_name
from scheduler_worker import DEVICES, BadChoice, ChoicePolicy

Refuse = Callable[[str, str], None]  # the name of a setting, and what is wrong with it


def policy(settings: Settings) -> ChoicePolicy:
    """Return the policy of the settings, or raise BadSetting."""
    return chosen(settings, _refuse(settings))


def chosen(settings: Settings, refuse: Refuse) -> ChoicePolicy:
    """Return the policy; call `refuse` with the name of a wrong setting."""
    said = settings.scheduler
    own: dict[str, Callable[..., Any]] = {}
    for name, functions in (("scheduler_filters", said.filters), ("scheduler_weighers", said.weighers)):
        try:
            own |= own_functions(functions)
        except BadChoice as problem:
            refuse(name, str(problem))
    made = ChoicePolicy()
    for name, filters, weighers, options in (
        ("scheduler_filters", said.filters, {}, {}),
        ("scheduler_weighers", (), said.weighers, {}),
        ("scheduler_rules", said.filters, said.weighers, rule_options(settings)),
    ):
        try:
            made = ChoicePolicy.from_names(
                filters or None,
                weighers or None,
                options=options,
                own=own,
                subset=said.subset,
                near=said.near,
                cells=settings.cell_names,
            )
        except BadChoice as problem:
            option = f"{problem.name}.{problem.option}: " if problem.option else ""
            refuse(name, f"{option}{problem}")
    return made


def rule_options(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the options of filters and weighers; classes of `pci_aliases` are the devices by default."""
    said = {name: dict(options) for name, options in settings.scheduler.rules.items()}
    aliases = [words.split()[0] for words in settings.requests.pci_aliases.values() if words.split()]
    if aliases:
        classes = dict.fromkeys((*DEVICES, *aliases))
        said["pci"] = {"classes": list(classes), **said.get("pci", {})}
    return said


def own_functions(names: Iterable[str]) -> dict[str, Callable[..., Any]]:
    """Return the functions of the names with the form `module:function`."""
    return {name: _function(name) for name in names if ":" in name}


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


def _refuse(settings: Settings) -> Callable[[str, str], NoReturn]:
    def refuse(name: str, why: str) -> NoReturn:
        raise BadSetting(f"{name} = {by_name(settings)[name]!r}: {why}")

    return refuse
