"""One encoded image: is it whole, and how does it lie in the shards?"""
