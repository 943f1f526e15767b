"""Merged silver to what people read. A file a table; each has a `build` without any action in it."""
