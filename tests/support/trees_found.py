"""Placement's answers about provider trees, for pages of the control room."""

from bus.replication import KnownInventory, KnownProvider, KnownTree, TreesFound


def a_page(*hosts: tuple[str, int], traits: tuple[str, ...] = (), agent: str = "a1") -> TreesFound:
    """Hosts by name, with so many of 16 × 2 − 2 VCPU held."""
    return TreesFound(
        trees=tuple(
            KnownTree(None, None, 0, 1, (KnownProvider(f"r-{name}", name, None, 1, 1, 0, (used,), 0, 0),))
            for name, used in hosts
        ),
        inventories=(KnownInventory("VCPU", 17, 1, 1, 16, 1, 2.0),),
        stocks=((0,),),
        traits=(traits,),
        aggregates=(("agg",),),
        owners=(("c1", agent, "z1"),),
    )
