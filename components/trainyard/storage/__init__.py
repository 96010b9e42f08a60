"""Outputs on disk and in buckets: the commit protocol, leases, and the cache of a bucket's folders."""
