"""A plain type accepts nothing that its JSON schema refuses, for random bodies."""

import json
import random
from typing import Any

import msgspec
import pytest

from placement_worker.http import schemas
from placement_worker.http.schemas import Schema

UUID = "aaaaaaaa-0000-0000-0000-000000000001"
STOCK = {
    "total": 8, "reserved": 1, "min_unit": 1, "max_unit": 8, "step_size": 1, "allocation_ratio": 1.5,
    "resource_provider_generation": 2,
}  # fmt: skip
CLAIM = {
    "allocations": {UUID: {"resources": {"VCPU": 1}, "generation": 3}},
    "project_id": "p1",
    "user_id": "u1",
    "consumer_generation": None,
    "mappings": {"_A": [UUID]},
    "consumer_type": "INSTANCE",
}
SOUND: list[tuple[Schema, Any]] = [
    (schemas.POST_PROVIDER[0], {"name": "one", "uuid": UUID}),
    (schemas.POST_PROVIDER[14], {"name": "one", "uuid": UUID, "parent_provider_uuid": None}),
    (schemas.PUT_INVENTORIES, {"resource_provider_generation": 1, "inventories": {"VCPU": STOCK}}),
    (schemas.PUT_TRAITS, {"resource_provider_generation": 1, "traits": ["CUSTOM_A", "CUSTOM_B"]}),
    (schemas.PUT_ALLOCATIONS[38], CLAIM),
    (schemas.POST_ALLOCATIONS[38], {UUID: CLAIM}),
]
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**31 - 1, 1.0, 1.5, 1e39, -0.5, "", "x" * 300, "vcpu", "VCPU\n",
    UUID.upper(), UUID.replace("-", ""), UUID + "\n", [], [UUID], ["A", "A"], {}, {"VCPU": 1}, {"": {}},
    10**30,
]  # fmt: skip


def spoilt(value: Any, chance: random.Random) -> Any:
    value = json.loads(json.dumps(value))
    if not isinstance(value, dict | list) or not value or chance.random() < 0.15:
        return chance.choice(ODD)
    if isinstance(value, list):
        value[chance.randrange(len(value))] = chance.choice(ODD)
        return value
    key = chance.choice(sorted(value))
    match chance.randrange(5):
        case 0:
            del value[key]
        case 1:
            value[chance.choice(("", "bogus", "vcpu", "VCPU\n", UUID.upper(), key + "\n"))] = value[key]
        case _:
            value[key] = spoilt(value[key], chance)
    return value


@pytest.mark.parametrize(("schema", "sound"), SOUND)
def test_the_plain_type_accepts_only_what_the_schema_accepts(schema: Schema, sound: Any) -> None:
    plain = schema._plain
    assert plain is not None
    plain.decode(json.dumps(sound).encode())
    assert schema.complaint(sound) == ""
    chance, refused = random.Random(7), 0
    for _ in range(1500):
        body = spoilt(sound, chance)
        try:
            plain.decode(json.dumps(body).encode())
        except msgspec.ValidationError:
            refused += 1
            continue
        assert schema.complaint(body) == "", body
    assert refused > 300
