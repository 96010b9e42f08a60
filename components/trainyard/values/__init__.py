"""What a raw value means, the same in every format and at every place: docs/reference/values.md specifies it."""
