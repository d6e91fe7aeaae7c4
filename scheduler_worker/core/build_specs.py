"""Makes the specs of builds for agents, and limits their sizes."""

import msgspec

from bus.messages import BuildRequested
from bus.requests import BuildSpec
from scheduler_worker.core.order_sections import flavors_of

MAX_METADATA_BYTES = 64 * 1024
MAX_SPEC_BYTES = 256 * 1024  # bytes of one build's spec: the agent's message also contains hosts and decision
MAX_SPECS_BYTES = 16 * 1024 * 1024  # bytes of the specs of all builds of a request together
_encode = msgspec.json.Encoder().encode


def spec_of(request: BuildRequested, alternative_index: int = 0) -> BuildSpec:
    """Return the spec of a build for its agent, with the flavor of an alternative or of a section."""
    return BuildSpec(
        flavor=flavors_of(request)[alternative_index],
        image=request.image,
        project=request.project,
        user=request.user,
        metadata=request.metadata,
        name=request.name,
    )


def too_much(request: BuildRequested, size: int, together: int) -> str:
    """Return why a request is too large to be sent to agents, or "" if it is not. `size` is the size of one
    build's spec, `together` the size of all builds' specs.
    """
    metadata = len(_encode(request.metadata)) if size > MAX_METADATA_BYTES else 0
    if metadata > MAX_METADATA_BYTES:
        return f"metadata: {metadata} bytes, at most {MAX_METADATA_BYTES}"
    if size > MAX_SPEC_BYTES:
        return f"flavor, image and metadata: {size} bytes together, at most {MAX_SPEC_BYTES} can be built"
    if together > MAX_SPECS_BYTES:
        return (
            f"instances: {len(request.instances)} of them, with {size} bytes of flavor, image and metadata"
            f" each, are {together} bytes in all, at most {MAX_SPECS_BYTES} in one request"
        )
    return ""


def size_of(request: BuildRequested) -> int:
    """Return the size in bytes of the longest spec of a build of this request: each flavor of the
    request gives another spec.
    """
    return max([len(_encode(spec_of(request, index))) for index in range(len(flavors_of(request)))])
