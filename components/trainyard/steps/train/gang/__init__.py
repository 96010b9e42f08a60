"""Several workers that train one model: rendezvous, supervision and restarts."""
