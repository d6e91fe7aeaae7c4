"""The control room's pages over HTTP; the module `app` has all routes."""
