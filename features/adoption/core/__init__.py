"""The pure part of adoption."""
