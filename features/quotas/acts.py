"""The acts on limits and weights of projects."""

from collections.abc import Mapping

from bus.acts import Act, Requested, sent
from bus.vocabulary import Message
from features.quotas.messages import EDIT_QUOTA, QUOTAS, FindQuotas, QuotaEdited, QuotaEditRequested

ACTS = (Act("quota", "admin", "limits and weights of projects", sent(EDIT_QUOTA)),)
REQUESTED: Mapping[type[Message], Requested] = {
    QuotaEditRequested: Requested(
        state=lambda message: (QUOTAS, FindQuotas(project=message.edit.project)),
        id=lambda message: "" if message.edit.project else "default",
    )
}
DONE = (QuotaEdited,)
