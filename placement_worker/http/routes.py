"""The routes of the Placement API: methods, versions, policy rules and handlers of each URL pattern."""

from collections.abc import Mapping, Sequence
from functools import partial

from placement_worker.http import allocations, extensions, openapi, providers
from placement_worker.http import classes_and_traits as names
from placement_worker.http.extension import HttpPart
from placement_worker.http.operation import BULK_BODY, LARGE_BODY, Operation, delete, get, patch, post, put

_PROVIDER = "/resource_providers/{uuid}"
_OF = "placement:resource_providers"


# URL patterns are matched in this order, so the most frequent ones come first.
_ROUTES: Mapping[str, tuple[Operation, ...]] = {
    "/allocations/{consumer}": (
        put("placement:allocations:update", allocations.put),
        get("placement:allocations:list", allocations.of_consumer),
        delete("placement:allocations:delete", allocations.delete),
    ),
    "/allocation_candidates": (get("placement:allocation_candidates:list", allocations.list_all, since=10),),
    "/allocations": (post("placement:allocations:manage", allocations.post, since=13, body=LARGE_BODY),),
    "/resource_providers": (get(f"{_OF}:list", providers.list_all), post(f"{_OF}:create", providers.create)),
    _PROVIDER: (
        get(f"{_OF}:show", providers.show),
        put(f"{_OF}:update", providers.update, of_provider=True),
        delete(f"{_OF}:delete", providers.delete),
    ),
    f"{_PROVIDER}/inventories": (
        get(f"{_OF}:inventories:list", providers.inventories),
        put(f"{_OF}:inventories:update", providers.set_inventories, of_provider=True),
        post(f"{_OF}:inventories:create", providers.add_inventory, of_provider=True),
        delete(f"{_OF}:inventories:delete", providers.delete_inventories, since=5, before=405),
    ),
    f"{_PROVIDER}/inventories/{{resource_class}}": (
        get(f"{_OF}:inventories:show", providers.inventory),
        put(f"{_OF}:inventories:update", providers.set_inventory, of_provider=True),
        delete(f"{_OF}:inventories:delete", providers.delete_inventory),
    ),
    f"{_PROVIDER}/usages": (get(f"{_OF}:usages", providers.usages),),
    f"{_PROVIDER}/aggregates": (
        get(f"{_OF}:aggregates:list", providers.aggregates, since=1),
        put(f"{_OF}:aggregates:update", providers.set_aggregates, since=1, of_provider=True),
    ),
    f"{_PROVIDER}/traits": (
        get(f"{_OF}:traits:list", providers.traits, since=6),
        put(f"{_OF}:traits:update", providers.set_traits, since=6),
        delete(f"{_OF}:traits:delete", providers.delete_traits, since=6),
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
        delete("placement:resource_classes:delete", partial(names.delete, "resource class"), since=2),
    ),
    "/traits": (get("placement:traits:list", names.traits, since=6),),
    "/traits/{name}": (
        get("placement:traits:show", names.show_trait, since=6, json=False),
        put("placement:traits:update", names.ensure_trait, since=6, body=0),
        delete("placement:traits:delete", partial(names.delete, "trait"), since=6),
    ),
    "/usages": (get("placement:usages", allocations.usages, since=9, target=lambda call: dict(call.pairs)),),
    "/reshaper": (post("placement:reshaper:reshape", allocations.reshape, since=30, body=LARGE_BODY),),
    "/": (get("", extensions.versions, json=False),),
    # berth's additional routes, for all microversions
    "/berth/explain": (get("placement:allocation_candidates:list", allocations.explain),),
    "/berth/providers": (post("berth:providers:load", extensions.load, body=BULK_BODY),),
    "/berth/changes": (get("berth:changes:list", extensions.changes, json=False),),
    "/berth/aggregates": (
        get("berth:aggregates:list", extensions.list_aggregates),
        post("berth:aggregates:create", extensions.create_aggregate),
    ),
    "/berth/aggregates/{aggregate}": (
        get("berth:aggregates:show", extensions.show_aggregate),
        patch("berth:aggregates:update", extensions.change_aggregate),
        delete("berth:aggregates:delete", extensions.delete_aggregate),
    ),
    "/berth/aggregates/{aggregate}/hosts/{host}": (
        put("berth:aggregates:update", partial(extensions.change_host, "add"), body=0),
        delete("berth:aggregates:update", partial(extensions.change_host, "remove")),
    ),
    "/healthz": (get("", extensions.alive, json=False),),
    "/readyz": (get("", extensions.ready, json=False),),
    "/metrics": (get("", extensions.metrics, json=False),),
}


def routes(parts: Sequence[HttpPart] = ()) -> Mapping[str, tuple[Operation, ...]]:
    """Return the operations of each URL pattern, with those of features."""
    added = {pattern: operations for part in parts for pattern, operations in part.routes.items()}
    return {**_ROUTES, **added, openapi.ADDRESS: (get("", openapi.serving(parts)),)}
