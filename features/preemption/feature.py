"""Declares the feature preemption."""

from bus.feature import Feature

FEATURE = Feature(name="preemption", says="deletes instances of lower priority for requests that fit nowhere")
