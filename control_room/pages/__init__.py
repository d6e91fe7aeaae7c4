"""The pages over HTTP. Begin with `app`."""
