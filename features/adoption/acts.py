"""The act on instances that were created without berth, and the refusal of invalid requests for it."""

from bus.acts import Act, sent
from bus.invalid_requests import InvalidRequest, RequestKind
from bus.vocabulary import Message
from features.adoption.messages import BUILD_ADOPT, BuildAdopted

ACTS = (Act("adopt", "admin", "adopt instances that were created without berth", sent(BUILD_ADOPT)),)


def _not_adopted(request: InvalidRequest) -> Message:
    return BuildAdopted(
        build=request.id("build"),
        cell=request.cell_of(),
        outcome="refused",
        why=request.why,
        code=request.code,
        reply_to=request.reply_to,
    )


REQUEST_KINDS = (RequestKind(BUILD_ADOPT, _not_adopted),)
