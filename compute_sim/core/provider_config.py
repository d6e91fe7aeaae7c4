"""Reads inventories and traits from an operator's provider.yaml, in Nova's schema 1.0.

The file adds content to existing providers and never changes content that drivers of the hardware added.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from bus.reports import Inventory
from bus.vocabulary import END, MAX_RATIO, Amount, ClassName, Count, TraitName
from compute_sim.core.provider_tree import ProviderTree

COMPUTE_NODE = "$COMPUTE_NODE"
_ID = r"^([0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}|\$COMPUTE_NODE)" + END
_VERSION = re.compile(r"1\.(0|[1-9][0-9]*)")


class BadProviderConfig(ValueError):
    """The error for an invalid provider.yaml; the text names the field and the reason."""


class AddedInventory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An inventory in a provider.yaml."""

    total: Amount
    reserved: Count = 0
    min_unit: Amount = 1
    max_unit: Amount | None = None  # default: the total
    step_size: Amount = 1
    allocation_ratio: Annotated[float, Meta(gt=0, le=MAX_RATIO)] = 1.0


class Identification(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The provider to which an entry of a provider.yaml applies, by uuid or name."""

    uuid: Annotated[str, Meta(pattern=_ID)] = ""
    name: Annotated[str, Meta(max_length=200)] = ""


class AddedInventories(msgspec.Struct, frozen=True):
    """The inventories that an entry of a provider.yaml adds."""

    additional: tuple[dict[ClassName, AddedInventory], ...] = ()


class AddedTraits(msgspec.Struct, frozen=True):
    """The traits that an entry of a provider.yaml adds."""

    additional: tuple[TraitName, ...] = ()


class ConfiguredProvider(msgspec.Struct, frozen=True):
    """An entry of a provider.yaml."""

    identification: Identification
    inventories: AddedInventories = AddedInventories()
    traits: AddedTraits = AddedTraits()


class _Meta(msgspec.Struct, frozen=True):
    schema_version: str


class _File(msgspec.Struct, frozen=True):
    meta: _Meta
    providers: tuple[ConfiguredProvider, ...] = ()
    source: str = field(default="", name="__source_file")


# The fields of version 1.0. A later version may have more fields; like Nova we ignore them.
_FIELDS = {"": {"meta", "providers"}, "providers": {"identification", "inventories", "traits"}}


def provider_config(configured: Any) -> tuple[ConfiguredProvider, ...]:
    """Check a provider.yaml, parsed as `configured`, and return the providers with their additions; raise
    BadProviderConfig if it is invalid.
    """
    try:
        file = msgspec.convert(configured, _File)
    except msgspec.ValidationError as problem:
        raise BadProviderConfig(_by_field(str(problem))) from None
    version = file.meta.schema_version
    if not _VERSION.fullmatch(version):
        raise BadProviderConfig(
            f"meta.schema_version: {version!r}: only versions from 1.0, below 2, are known"
        )
    if version == "1.0":
        _refuse_unknown(configured)
    if file.source:
        raise BadProviderConfig("__source_file: a file cannot set it")
    for position, provider in enumerate(file.providers):
        if wrong := _wrong(provider):
            raise BadProviderConfig(f"providers[{position}].{wrong}")
    named = [provider.identification.uuid or provider.identification.name for provider in file.providers]
    for name in named:
        if named.count(name) > 1:
            position = len(named) - 1 - named[::-1].index(name)
            raise BadProviderConfig(f"providers[{position}].identification: {name} is there twice")
    return file.providers


def _by_field(problem: str) -> str:
    problem_text, _, where = problem.partition(" - at `")
    return f"{where.rstrip('`').removeprefix('$').lstrip('.') or 'the file'}: {problem_text}"


def _refuse_unknown(configured: dict[str, Any]) -> None:
    for at, entries in (("", [configured]), ("providers", configured.get("providers") or ())):
        for position, entry in enumerate(entries):
            for strange in sorted(entry.keys() - _FIELDS[at]):
                where = f"providers[{position}].{strange}" if at else strange
                known = ", ".join(_FIELDS[at])
                raise BadProviderConfig(f"{where}: there is no such field; there are: {known}")
            for part in ("inventories", "traits") if at else ():
                for strange in sorted(entry.get(part, {}).keys() - {"additional"}):
                    where = f"providers[{position}].{part}.{strange}"
                    raise BadProviderConfig(f"{where}: there is no such field; there are: additional")


def _wrong(provider: ConfiguredProvider) -> str:
    if bool(provider.identification.uuid) == bool(provider.identification.name):
        return "identification: names a uuid or a name, and only one of them"
    seen: set[str] = set()
    for number, some in enumerate(provider.inventories.additional):
        for class_, has in some.items():
            at = f"inventories.additional[{number}].{class_}"
            if not class_.startswith("CUSTOM_"):
                return f"{at}: only classes of your own, CUSTOM_..."
            if class_ in seen:
                return f"{at}: is there twice"
            if has.reserved > has.total:
                return f"{at}.reserved: {has.reserved} is more than the total, {has.total}"
            seen.add(class_)
    for trait in provider.traits.additional:
        if not trait.startswith("CUSTOM_"):
            return f"traits.additional: {trait}: only traits of your own, CUSTOM_..."
    return ""


@dataclass(frozen=True)
class ProviderConfigDriver:
    """Adds a provider.yaml file's inventories and traits to a host's tree, after all hardware drivers."""

    providers: tuple[ConfiguredProvider, ...]

    def update_provider_tree(self, tree: ProviderTree) -> None:
        by_name = {each.identification.name: each for each in self.providers if each.identification.name}
        by_id = {at.identification.uuid.lower(): at for at in self.providers if at.identification.uuid}
        for provider in tree.providers:
            of_id, of_name = by_id.get(provider.id), by_name.get(provider.name)
            if of_id is not None and of_name is not None:
                text = f"providers: {provider.name} is there twice, by its name and its uuid"
                raise BadProviderConfig(text)
            added = of_id or of_name
            if added is None and provider.id == tree.root:
                added = by_id.get(COMPUTE_NODE.lower())
            if added is not None:
                tree.give(provider.name, **dict(_inventories(added)))
                tree.mark(provider.name, *added.traits.additional)


def _inventories(provider: ConfiguredProvider) -> Iterable[tuple[str, Inventory]]:
    for some in provider.inventories.additional:
        for name, has in some.items():
            most = has.total if has.max_unit is None else has.max_unit
            yield name, Inventory(**{**msgspec.structs.asdict(has), "max_unit": most})
