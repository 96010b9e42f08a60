"""Outputs on disk and in buckets: the commit protocol, leases, and the cache of bucket folders."""
