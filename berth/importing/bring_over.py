"""Imports the contents of a Placement into another: writes the differences, and lists what was refused."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from berth.importing.placement_contents import differences, unimportable
from berth.importing.writers import ProviderWriter, portions
from berth.kit.placement_client import PlacementClient, Progress, Rejected, each_in_parallel
from berth.kit.placement_contents import ImportedConsumer, ImportedProvider, PlacementContents
from bus.reports import Inventory
from bus.vocabulary import MAX_INT

TYPED = 38  # first microversion with types of consumers


@dataclass
class Outcome:
    """Counts the objects that an import has written, and lists the refused objects with reasons."""

    names: int = 0
    made: int = 0
    changed: int = 0
    dropped: int = 0
    claimed: int = 0
    released: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def nothing(self) -> bool:
        """Return whether nothing was changed or refused."""
        return not any(vars(self).values())


class Import:
    """Imports a Placement's contents, `theirs`, into `target`, which contains `ours`; can be repeated."""

    def __init__(
        self,
        theirs: PlacementContents,
        ours: PlacementContents,
        target: PlacementClient,
        writer: ProviderWriter,
        progress: Progress,
    ) -> None:
        self.theirs = theirs
        self.ours = ours
        self.target = target
        self.writer = writer
        self.progress = progress
        self.outcome = Outcome()

    async def run(self, prune: bool) -> Outcome:
        """Write differences to the target; with `prune`, delete objects that only the target has."""
        found = differences(self.theirs, self.ours)
        refused = unimportable(self.theirs, self.ours, prune)
        self.outcome.failed |= {unlike.id: refused[unlike.id] for unlike in found if unlike.id in refused}
        theirs, ours = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)  # ids by type
        for unlike in found:
            if unlike.id not in refused:
                (ours if unlike.ours_alone else theirs)[unlike.what].add(unlike.id)
        await self._name("resource_classes", theirs["class"])
        await self._name("traits", theirs["trait"])
        await self._rename_conflicting(prune)
        again = await self._load(self.theirs.parents_first(theirs["provider"]))
        if prune:
            await self._release(ours["consumer"])
        await self._claim([self.theirs.consumers[id_] for id_ in sorted(theirs["consumer"])])
        await self._load(again, last=True)  # a resource class that was in use may be free now
        if prune:
            await self._drop(ours["provider"])
        return self.outcome

    async def _name(self, kind: str, names: Iterable[str]) -> None:
        async def make(name: str) -> None:
            await self._write("names", name, "PUT", f"/{kind}/{name}")

        await each_in_parallel(sorted(names), make, "names made", self.progress)

    async def _write(self, counter: str, id_: str, method: str, path: str) -> None:
        try:
            await self.target.request(method, path)
            setattr(self.outcome, counter, getattr(self.outcome, counter) + 1)
        except Rejected as why:
            if method != "DELETE" or why.status != 404:
                self.outcome.failed[id_] = str(why)

    async def _rename_conflicting(self, prune: bool) -> None:
        """Rename each provider of the target whose name an imported provider needs, before the import writes
        providers. Without `prune`, only providers that the source also has are renamed.
        """
        owners = {provider.name: provider.id for provider in self.theirs.providers.values()}

        async def rename(provider: ImportedProvider) -> None:
            unique = f"{provider.name[:150]} ({provider.id})"
            with suppress(Rejected):  # then the provider that needs the name is refused with the reason
                await self.target.request("PUT", f"/resource_providers/{provider.id}", {"name": unique})

        in_the_way = [
            provider
            for provider in self.ours.providers.values()
            if owners.get(provider.name, provider.id) != provider.id
            and (prune or provider.id in self.theirs.providers)
        ]
        await each_in_parallel(in_the_way, rename, "names freed", self.progress)

    async def _load(self, providers: list[ImportedProvider], *, last: bool = False) -> list[ImportedProvider]:
        """Write providers to the target; return the refused ones. With `last`, record the reasons: no retry
        follows.
        """
        refused: list[ImportedProvider] = []
        done = 0
        for portion in portions(providers):
            for written in await self.writer(portion):
                match written.did:
                    case "refused":
                        refused.append(written.provider)
                        if last:
                            self.outcome.failed[written.provider.id] = written.why
                    case "made":
                        self.outcome.made += 1
                    case "changed":
                        self.outcome.changed += 1
            done += len(portion)
            self.progress("providers written", done, len(providers))
        return refused

    async def _claim(self, consumers: list[ImportedConsumer]) -> None:
        """Claim allocations for the imported consumers.

        A claim may need capacity that a later claim releases, so refused claims are repeated while at least
        one succeeds. For claims that are still refused, inventories are enlarged temporarily.
        """
        left = await self._claims(consumers)
        while left and len(left) < len(consumers):
            consumers = left
            left = await self._claims(consumers)
        if not left:
            return
        narrow = {id_ for consumer in left for id_ in consumer.allocations}
        narrowed = self.theirs.parents_first(narrow & self.theirs.providers.keys())
        await self.writer(self._widened(provider, left) for provider in narrowed)
        try:
            await self._claims(left, last=True)
        finally:
            for written in await self.writer(narrowed):
                if written.did == "refused":
                    self.outcome.failed[written.provider.id] = written.why

    def _widened(
        self, provider: ImportedProvider, consumers: Collection[ImportedConsumer]
    ) -> ImportedProvider:
        """Return a copy of a provider with temporary inventories of the consumers' resource classes.

        Each new total is the sum of the allocations in source and target, so that every claim fits.
        """
        wanted = {class_ for consumer in consumers for class_ in consumer.allocations.get(provider.id, ())}
        held = {
            class_: self.theirs.used(provider.id, class_) + self.ours.used(provider.id, class_)
            for class_ in wanted
        }
        held_inventories = {class_: Inventory(total=min(MAX_INT, amount)) for class_, amount in held.items()}
        return replace(provider, inventories={**provider.inventories, **held_inventories})

    async def _claims(
        self, consumers: list[ImportedConsumer], *, last: bool = False
    ) -> list[ImportedConsumer]:
        """Claim allocations; return refused consumers. With `last`, record the reasons: no retry follows."""
        refused: list[ImportedConsumer] = []

        async def claim(consumer: ImportedConsumer) -> None:
            held = await self.target.consumer(consumer.id)
            body = _claim(consumer, held.generation if held else None)
            minor = self.target.minor if consumer.type else min(self.target.minor, TYPED - 1)
            try:
                await self.target.request("PUT", f"/allocations/{consumer.id}", body, minor=minor)
                self.outcome.claimed += 1
            except Rejected as why:
                refused.append(consumer)
                if last:
                    self.outcome.failed[consumer.id] = str(why)

        await each_in_parallel(consumers, claim, "consumers written", self.progress)
        return refused

    async def _release(self, ids: Iterable[str]) -> None:
        async def release(id_: str) -> None:
            await self._write("released", id_, "DELETE", f"/allocations/{id_}")

        await each_in_parallel(sorted(ids), release, "consumers released", self.progress)

    async def _drop(self, ids: set[str]) -> None:
        for provider in reversed(self.ours.parents_first(ids)):
            await self._write("dropped", provider.id, "DELETE", f"/resource_providers/{provider.id}")


def _claim(consumer: ImportedConsumer, generation: int | None) -> Mapping[str, Any]:
    typed = {"consumer_type": consumer.type} if consumer.type else {}
    return {
        "allocations": {by: {"resources": held} for by, held in consumer.allocations.items()},
        "project_id": consumer.project,
        "user_id": consumer.user,
        "consumer_generation": generation,
        **typed,
    }
