"""`berth make-room FLAVOR` with the roles of the feature topology."""

from berth.operations.boot_options import boot_request, options_named
from features.planning.make_room_command import with_flavor
from features.topology.messages import topology_part


def test_roles_are_changes_of_the_flavor() -> None:
    options = options_named(role=("worker:2,vcpus=4",))
    request = boot_request(with_flavor(options, "memory_mb=4096"))
    roles = topology_part(request.parts).roles
    assert [(role.flavor.vcpus, role.flavor.memory_mb) for role in roles] == [(4, 4096)]
