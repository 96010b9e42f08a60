"""Other systems that take a pushed version: the request to each of them, and the sending."""
