"""The acts on maintenance windows and held evacuations."""

from collections.abc import Mapping
from typing import Any

from bus.acts import Act, Requested, describe, sent
from bus.vocabulary import Message
from features.maintenance.messages import (
    EDIT_MAINTENANCE,
    MAINTENANCE,
    AddWindow,
    CancelWindow,
    ChangeWindow,
    FindMaintenance,
    MaintenanceEditRequested,
)


def _window_state(message: MaintenanceEditRequested) -> Any:
    if not isinstance(message.edit, AddWindow | ChangeWindow | CancelWindow):
        return None
    return MAINTENANCE, FindMaintenance(subject=describe(message).id, ended=True)


ACTS = (Act("maintain", "operator", "maintenance windows, and held evacuations", sent(EDIT_MAINTENANCE)),)
REQUESTED: Mapping[type[Message], Requested] = {
    MaintenanceEditRequested: Requested(state=_window_state, targets=("roots", "window", "cell"))
}
