"""Changes of reservations in the test of a policy, such as `reservation.season=none`."""

from uuid import NAMESPACE_OID, uuid5

from msgspec import structs

from berth.kit import BadSetting, BootOptions, boot_request
from bus.delivery.runner import Bus
from bus.messages import BuildRequested
from control_room.kit import parse_flavor
from features.policies.decisions import RecordedDecision
from features.policies.stored_changes import ChangesPart, StoredChanges
from features.policies.with_reservations.subject import SUBJECT, ReservationsSupposed, encode
from features.reservations.edits import reservation_named
from features.what_if.core.request_form import MOST_INSTANCES


class ReservationChanges(StoredChanges):
    subject = SUBJECT

    def __init__(self) -> None:
        super().__init__()
        self.removed: list[str] = []  # names or uuids of reservations
        self.added: list[BuildRequested] = []  # reservations, as requests of builds

    def take(self, change: str) -> bool:
        name, _, value = change.partition("=")
        subject, _, named = name.partition(".")
        if subject != "reservation" or not named:
            return False
        if value == "none":
            self.removed.append(named)
        else:
            self.added.append(_reservation(change, named, value))
        return True

    async def supposed(self, bus: Bus) -> str:
        found = [await reservation_named(bus, name) for name in self.removed]
        ids = tuple(each.id for answer in found for each in answer.reservations)
        return encode(ReservationsSupposed(without=ids, reserves=tuple(self.added))).decode()

    def shows_in_record(self, decision: RecordedDecision) -> bool:
        return False


def _reservation(change: str, name: str, value: str) -> BuildRequested:
    """Return a reservation such as `10xVCPU:8,MEMORY_MB:16384,TRAIT` as a request for its slots."""
    try:
        flavor = parse_flavor(value)
    except ValueError as problem:
        raise BadSetting(f"--with {change}: {problem}") from None
    if flavor.parts > MOST_INSTANCES:
        raise BadSetting(f"--with {change}: at most {MOST_INSTANCES} slots")
    specs = [f"resources:{resource}={amount}" for resource, amount in sorted(flavor.amounts.items())]
    specs += [f"trait:{trait}=required" for trait in sorted(flavor.required)]
    specs += [f"trait:{trait}=forbidden" for trait in sorted(flavor.forbidden)]
    sizes = BootOptions(vcpus=0, memory_mb=0, disk_gb=0, extra_spec=tuple(specs), count=flavor.parts)
    request = boot_request(sizes)
    return structs.replace(
        request,
        request=str(uuid5(NAMESPACE_OID, change)),  # always the same id, because it selects among equal hosts
        alternates=0,
        flavor=structs.replace(request.flavor, name=name),
    )


PART = ChangesPart(ReservationChanges, "reservation.NAME=none (or =NxCLASS:AMOUNT,...)")
