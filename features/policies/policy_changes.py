"""Parses changes of the scheduling policy, such as `weights.ram=2`, and applies them to settings."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from berth.kit import BadSetting, Settings, added, choice_policy, rule_options, scheduler_settings_in
from bus.delivery.runner import Bus
from features.policies.messages import TrialPolicy
from features.policies.stored_changes import MODULE, ChangesPart, StoredChanges
from scheduler_worker.extension import BadChoice, filter_names, with_changes

FORMS = (
    "weights.NAME=NUMBER, rules.filters=NAME,... (or +NAME, -NAME), rules.NAME.OPTION=VALUE, subset=N,"
    " near=NUMBER"
)


@dataclass(frozen=True)
class ChangedPolicy:
    """A policy to test. If decision records alone show the effect of its changes, `only_numbers` has them."""

    trial: TrialPolicy
    # The changed multipliers, `near` and `subset`; None: other values are changed, too
    only_numbers: "ChangedNumbers | None" = None
    stored: Sequence[StoredChanges] = ()  # changes of what other features store

    async def completed(self, bus: Bus) -> "ChangedPolicy":
        """Return this with what the stored changes let the scheduler suppose."""
        supposes = {each.subject: text for each in self.stored if (text := await each.supposed(bus))}
        return replace(self, trial=structs.replace(self.trial, supposes=supposes))


@dataclass
class ChangedNumbers:
    """Changed multipliers and options. A decision record alone suffices to compute their effect."""

    multipliers: dict[str, float] = field(default_factory=dict)
    subset: int | None = None
    near: float | None = None


def changed_policy(settings: Settings, changes: Sequence[str]) -> ChangedPolicy:
    """Return the policy of the settings with the given changes. A change without `=` is a settings file: its
    policy replaces the policy of the settings. Raise BadSetting for a change that is not understood.
    """
    files = [change for change in changes if "=" not in change]
    for path in files:
        if not Path(path).is_file():
            raise BadSetting(f"--with {path}: no such file, and no change: {_forms()}")
        scheduler = scheduler_settings_in(Path(path))
        settings = structs.replace(settings, scheduler=scheduler)
    present = choice_policy(settings)
    filters = filter_names(settings.scheduler.filters or None, rule_options(settings))
    weighers = {weigher.name: weigher.multiplier for weigher in present.weighers}
    options: dict[str, dict[str, Any]] = rule_options(settings)
    stored = [part.make() for part in added(ChangesPart, MODULE)]
    numbers, others = ChangedNumbers(), bool(files) or not changes
    subset, near = settings.scheduler.subset, settings.scheduler.near
    for change in changes:
        name, equals, value = change.partition("=")
        first, _, rest = name.partition(".")
        if not equals or _is_taken(change, stored):
            continue
        if first == "weights" and rest:
            numbers.multipliers[rest] = weighers[rest] = _number(change, value)
        elif name == "subset":
            numbers.subset = subset = max(int(_number(change, value)), 1)
        elif name == "near":
            numbers.near = near = _number(change, value)
        elif name == "rules.filters":
            filters, others = _filters(filters, value), True
        elif first == "rules" and "." in rest:
            rule, _, option = rest.partition(".")
            options.setdefault(rule, {})[option] = _value(value)
            others = True
        else:
            raise BadSetting(f"--with {change}: is not one of: {_forms()}")
    trial = TrialPolicy(
        filters=tuple(filters), weighers=weighers, subset=subset, near=near,
        options={name: msgspec.json.encode(given).decode() for name, given in options.items()},
    )  # fmt: skip
    return ChangedPolicy(trial, None if others else numbers, [each for each in stored if each.taken])


def _is_taken(change: str, stored: Sequence[StoredChanges]) -> bool:
    taker = next((each for each in stored if each.take(change)), None)
    if taker is not None:
        taker.taken += 1
    return taker is not None


def _forms() -> str:
    return ", ".join([FORMS, *(part.forms for part in added(ChangesPart, MODULE) if part.forms)])


def _filters(present: Sequence[str], value: str) -> list[str]:
    try:
        return with_changes(present, [name.strip() for name in value.split(",") if name.strip()])
    except BadChoice as problem:
        raise BadSetting(f"--with rules.filters={value}: {problem}") from None


def _number(change: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise BadSetting(f"--with {change}: {value!r} is no number") from None


def _value(text: str) -> Any:
    """Return the value that a text has as JSON. A text that is no JSON is returned unchanged: filters convert
    it.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
