"""The default rules of the routes permit the roles that the acts need on the bus."""

from bus.acts import RANK
from features.placement_additions.http import HTTP
from placement_worker.testing import AccessPolicy, Identity

LEAST = {
    "berth:changes:list": "reader",
    "berth:aggregates:list": "reader",
    "berth:aggregates:show": "reader",
    "berth:aggregates:create": "operator",
    "berth:aggregates:update": "operator",
    "berth:aggregates:delete": "operator",
    "berth:providers:load": "admin",
}


def test_every_rule_has_the_role_of_its_act() -> None:
    assert LEAST.keys() == HTTP.rules.keys()
    policy = AccessPolicy(of_features=HTTP.rules)
    for rule, least in LEAST.items():
        for role, rank in RANK.items():
            caller = Identity("u", "p", frozenset({role}))
            assert policy.allows(rule, caller, {}) == (rank >= RANK[least]), (rule, role)
