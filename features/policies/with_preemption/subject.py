"""The priority classes that a trial supposes, as JSON in the message of the trial."""

import msgspec

from bus.vocabulary import ShortList
from features.preemption.messages import PriorityClass

SUBJECT = "priorities"

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(ShortList[PriorityClass]).decode
