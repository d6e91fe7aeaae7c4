"""The route table of the API over HTTP: every address, its methods, their versions, rules and handlers."""

from collections.abc import Mapping

from placement_worker.http import microversions
from placement_worker.http.aggregates import AggregateHandlers
from placement_worker.http.aggregates_and_traits import Contents
from placement_worker.http.allocations import AllocationHandlers
from placement_worker.http.api_call import ApiAnswer, ApiCall, said
from placement_worker.http.candidates import Candidates
from placement_worker.http.change_feed import ChangeFeed
from placement_worker.http.classes_and_traits import ClassAndTraitHandlers
from placement_worker.http.extensions import ExtensionHandlers
from placement_worker.http.inventories import Inventories
from placement_worker.http.operations import BULK_BODY, LARGE_BODY, Operation, delete, get, patch, post, put
from placement_worker.http.providers import ProviderHandlers

Table = Mapping[str, tuple[Operation, ...]]

_PROVIDER = "/resource_providers/{uuid}"
_OF = "placement:resource_providers"


async def _root(call: ApiCall) -> ApiAnswer:
    version = {
        "id": "v1.0",
        "max_version": microversions.LATEST,
        "min_version": microversions.FIRST,
        "status": "CURRENT",
        "links": [{"rel": "self", "href": ""}],
    }
    return said({"versions": [version]})


def _project(call: ApiCall) -> Mapping[str, str]:
    return dict(call.pairs)


def table(
    providers: ProviderHandlers,
    inventories: Inventories,
    contents: Contents,
    names: ClassAndTraitHandlers,
    allocations: AllocationHandlers,
    candidates: Candidates,
    extensions: ExtensionHandlers,
    feed: ChangeFeed,
    aggregates: AggregateHandlers,
) -> Table:
    """Return the routes, the most frequent first: they are matched in this order."""
    return {
        "/allocations/{consumer}": (
            put("placement:allocations:update", allocations.put),
            get("placement:allocations:list", allocations.of_consumer),
            delete("placement:allocations:delete", allocations.delete),
        ),
        "/allocation_candidates": (
            get("placement:allocation_candidates:list", candidates.list_all, since=10),
        ),
        "/allocations": (post("placement:allocations:manage", allocations.post, since=13, body=LARGE_BODY),),
        "/resource_providers": (
            get(f"{_OF}:list", providers.list_all),
            post(f"{_OF}:create", providers.create),
        ),
        _PROVIDER: (
            get(f"{_OF}:show", providers.show),
            put(f"{_OF}:update", providers.update, of_provider=True),
            delete(f"{_OF}:delete", providers.delete),
        ),
        f"{_PROVIDER}/inventories": (
            get(f"{_OF}:inventories:list", inventories.list_all),
            put(f"{_OF}:inventories:update", inventories.replace, of_provider=True),
            post(f"{_OF}:inventories:create", inventories.add, of_provider=True),
            delete(f"{_OF}:inventories:delete", inventories.delete_all, since=5, before=405),
        ),
        f"{_PROVIDER}/inventories/{{resource_class}}": (
            get(f"{_OF}:inventories:show", inventories.show),
            put(f"{_OF}:inventories:update", inventories.change, of_provider=True),
            delete(f"{_OF}:inventories:delete", inventories.delete),
        ),
        f"{_PROVIDER}/usages": (get(f"{_OF}:usages", inventories.usages),),
        f"{_PROVIDER}/aggregates": (
            get(f"{_OF}:aggregates:list", contents.aggregates, since=1),
            put(f"{_OF}:aggregates:update", contents.set_aggregates, since=1, of_provider=True),
        ),
        f"{_PROVIDER}/traits": (
            get(f"{_OF}:traits:list", contents.traits, since=6),
            put(f"{_OF}:traits:update", contents.set_traits, since=6),
            delete(f"{_OF}:traits:delete", contents.drop_traits, since=6),
        ),
        f"{_PROVIDER}/allocations": (get(f"{_OF}:allocations:list", allocations.of_provider),),
        "/resource_classes": (
            get("placement:resource_classes:list", names.classes, since=2),
            post("placement:resource_classes:create", names.create_class, since=2),
        ),
        "/resource_classes/{name}": (
            get("placement:resource_classes:show", names.show_class, since=2),
            put("placement:resource_classes:update", names.rename_class, since=2, until=6),
            put("placement:resource_classes:update", names.ensure_class, since=7, body=0),
            delete("placement:resource_classes:delete", names.drop_class, since=2),
        ),
        "/traits": (get("placement:traits:list", names.traits, since=6),),
        "/traits/{name}": (
            get("placement:traits:show", names.show_trait, since=6, json=False),
            put("placement:traits:update", names.ensure_trait, since=6, body=0),
            delete("placement:traits:delete", names.drop_trait, since=6),
        ),
        "/usages": (get("placement:usages", allocations.usages, since=9, target=_project),),
        "/reshaper": (post("placement:reshaper:reshape", allocations.reshape, since=30, body=LARGE_BODY),),
        "/": (get("", _root, json=False),),
        # ours, whatever the version
        "/berth/explain": (get("placement:allocation_candidates:list", candidates.explain),),
        "/berth/providers": (post("berth:providers:load", extensions.load, body=BULK_BODY),),
        "/berth/changes": (get("berth:changes:list", feed.changes, json=False),),
        "/berth/aggregates": (
            get("berth:aggregates:list", aggregates.list_all),
            post("berth:aggregates:create", aggregates.create),
        ),
        "/berth/aggregates/{aggregate}": (
            get("berth:aggregates:show", aggregates.show),
            patch("berth:aggregates:update", aggregates.change),
            delete("berth:aggregates:delete", aggregates.delete),
        ),
        "/berth/aggregates/{aggregate}/hosts/{host}": (
            put("berth:aggregates:update", aggregates.put_host, body=0),
            delete("berth:aggregates:update", aggregates.delete_host),
        ),
        "/healthz": (get("", extensions.alive, json=False),),
        "/readyz": (get("", extensions.ready, json=False),),
        "/metrics": (get("", extensions.metrics, json=False),),
    }


def offered() -> Table:
    """Return the routes without handlers, for documents."""
    kinds = (
        ProviderHandlers, Inventories, Contents, ClassAndTraitHandlers, AllocationHandlers, Candidates,
        ExtensionHandlers, ChangeFeed, AggregateHandlers,
    )  # fmt: skip
    return table(*(object.__new__(kind) for kind in kinds))  # type: ignore[arg-type]
