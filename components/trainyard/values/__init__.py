"""The meaning of a raw value, equal in every format: docs/reference/values.md specifies it."""
