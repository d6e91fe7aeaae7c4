"""The REST API for builds: accepts requests over HTTP, publishes them on the bus, and stores their ends."""
