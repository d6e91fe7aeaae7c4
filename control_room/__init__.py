"""The control room: web pages on which operators see and control berth."""
