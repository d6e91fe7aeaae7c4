"""Random messages of every kind: each field has a usual value, one at its bound, or nonsense."""

from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
from msgspec import inspect

from bus.messages import HostReported, InventoryReported
from bus.protocol import Envelope
from bus.relays import HeartbeatRelayed, HeartbeatsMerged
from bus.topics import QUERIES, TOPICS
from bus.vocabulary import MAX_INT, Message

KINDS: dict[type[Message], str] = {t.message: t.pattern for t in TOPICS} | {
    kind: f"ask.{query.name}" for query in QUERIES for kind in (query.answer, query.asks)
}
NONSENSE = tuple(
    msgspec.Raw(text.encode())
    for text in (
        "-9223372036854775808", "-1", "0", "2147483648", "4611686018427387905", "18446744073709551616",
        "1e-300", "1.5", "3e38", "1e300", "1e999", "null", "true", '""', '"\\u0000"', "[]", "{}",
    )
)  # fmt: skip
BULKY = tuple(
    msgspec.Raw(text.encode())
    for text in (
        "9" * 5000,
        '"' + "x" * 100_000 + '"',
        "[" * 20_000 + "]" * 20_000,
        "[" + "1," * 100_000 + "1]",
        "{" + ",".join(f'"{index}": {index}' for index in range(50_000)) + "}",
    )
)
SPECS: dict[str, Sequence[str]] = {
    "resources:VCPU": ("1", "2147483647", "99999999999"),
    "resources1:CUSTOM_A": ("1", "2147483647"),
    "trait:CUSTOM_A": ("required", "forbidden", "preferred:1e308", "any1"),
    "hw:numa_nodes": ("1", "2", "64", "2147483647"),
    "hw:numa_cpus.0": ("0-99999", ",".join(["0-99999"] * 100), "0-4294967295"),
    "hw:numa_mem.0": ("1", "2147483647"),
    "hw:cpu_policy": ("shared", "dedicated", "mixed"),
    "hw:cpu_dedicated_mask": ("0-99999,^0", "^0-99999", "0"),
    "hw:mem_page_size": ("large", "any", "999999999GB", "1"),
    "pci_passthrough:alias": ("a:999", ",".join(["a:64"] * 100)),
    "group_policy": ("none", "isolate"),
    "same_subtree": (",".join(["1"] * 500), "1"),
    "capabilities:x": ("<in> " * 200, "s== 1"),
    "accel:device_profile": ("x",),
}
QUERY_TEXTS: Sequence[str] = (
    '[">=", "$free_ram_mb", 1]',
    '["and", ' + ", ".join(['["not", ["=", "$vcpus_total", 1]]'] * 120) + "]",
    '["or", ' * 500 + "1" + "]" * 500,
    '["in", "$host", "' + "x" * 3900 + '"]',
)


MOST_VALUES = 3000  # in one message


class RandomMessages:
    def __init__(self, seed: int, cells: Sequence[str], agents: Sequence[str]) -> None:
        self._chance = Random(seed)
        self._kinds = list(KINDS)
        self._types = {kind: inspect.type_info(kind) for kind in KINDS}
        self._words = {"cell": cells, "agent": agents, "event": ("updated",), "client": ("shop",)}
        self._ids = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(200)]

    def envelope(self, number: int) -> Envelope:
        """Return the message with this number; all kinds come in turn."""
        chance, kind = self._chance, self._kinds[number % len(self._kinds)]
        self._wildness = chance.choice((0.0, 0.0, 0.02, 0.2))  # how much of it cannot be decoded
        self._bulky, self._left = False, MOST_VALUES
        self._notifier = {name: chance.choice(words) for name, words in self._words.items()}
        if kind in (HostReported, HeartbeatRelayed, HeartbeatsMerged, InventoryReported):
            self._notifier["agent"] = "nobody"
        fields = self._value(self._types[kind], kind.__name__)
        key = KINDS[kind].format_map(defaultdict(lambda: "a", self._notifier))
        return Envelope(
            id=f"random-{number}",
            type=kind.__name__,
            key=key,
            body=msgspec.Raw(msgspec.json.encode(fields)),
            framed=False,
        )

    def _value(self, type_: Any, name: str) -> Any:
        chance = self._chance
        self._left -= 1
        if chance.random() < self._wildness:
            return self._nonsense()
        match type_:
            case inspect.Metadata(type=inner):
                return self._value(inner, name)
            case inspect.UnionType(types=types):
                return self._value(chance.choice(types), name)
            case inspect.StructType():
                return self._struct(type_)
            case inspect.LiteralType(values=values):
                return chance.choice(values)
            case inspect.BoolType():
                return chance.random() < 0.5
            case inspect.IntType(ge=least, le=most) | inspect.FloatType(ge=least, le=most):
                number = chance.choice((least, most, 0, 1, 2, 10, 1000, MAX_INT))
                return min(max(number or 0, least or 0), most or MAX_INT)
            case inspect.StrType():
                return self._text(type_, name)
            case inspect.TupleType(item_types=items):
                return [self._value(item, name) for item in items]
            case inspect.VarTupleType(item_type=item, max_length=most, min_length=least):
                several = self._several()
                return [
                    self._value(item, name) for _ in range(min(max(several, least or 0), most or several))
                ]
            case inspect.DictType(key_type=key, value_type=value):
                if name in ("extra_specs", "properties"):
                    return self._specs()
                return {str(self._value(key, name)): self._value(value, name) for _ in range(self._several())}
        return None

    def _struct(self, type_: inspect.StructType) -> Any:
        chance = self._chance
        given = {
            field.encode_name: self._value(field.type, field.name)
            for field in type_.fields
            if field.required or type_.array_like or chance.random() < 0.3
        }
        if type_.cls.__name__ in ("RegisterCell", "DropCell"):
            given["cell"] = "another"
        if type_.array_like:
            return list(given.values())
        return given | ({type_.tag_field: type_.tag} if type_.tag_field else {})

    def _several(self) -> int:
        if self._left < 0:
            return 0
        return self._chance.choice((0, 1, 1, 2, 3, 20)) if self._chance.random() < 0.99 else 1000

    def _specs(self) -> dict[str, Any]:
        chance = self._chance
        specs = {
            key: chance.choice(SPECS[key]) for key in chance.sample(list(SPECS), chance.choice((0, 1, 2, 5)))
        }
        many = chance.choice((0, 0, 0, 200))
        return specs | {f"resources{index}:CUSTOM_A": "1" for index in range(many)}

    def _text(self, type_: inspect.StrType, name: str) -> str:
        chance = self._chance
        if name in ("cell", "agent", "client", "to_cell") and chance.random() < 0.9:
            return self._notifier["cell" if name == "to_cell" else name]
        if name == "query":
            return chance.choice(QUERY_TEXTS)
        pattern = type_.pattern or ""
        if pattern.startswith("^[0-9a-f]{8}"):
            return chance.choice(self._ids)
        if "[A-Z0-9_]" in pattern:
            return chance.choice(("VCPU", "MEMORY_MB", "CUSTOM_A", "CUSTOM_B"))
        if "(s|m|h|d)" in pattern:
            return chance.choice(("", "1s", "999999d", "5m"))
        if pattern:
            return chance.choice(("a", "b", "c1"))
        longest = type_.max_length or 255
        return chance.choice((chance.choice(self._ids), "a", "1" * longest, "é" * longest, "a,b*#."))

    def _nonsense(self) -> Any:
        chance = self._chance
        if self._bulky or chance.random() < 0.5:
            return chance.choice(NONSENSE)
        self._bulky = True
        return chance.choice(BULKY)
