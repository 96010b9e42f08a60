"""Communication of the workers of a gang: settings, authentication, messages and heartbeats."""
