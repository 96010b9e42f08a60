"""The cost of a network: operations, memory, latency and step time; and the profiles of all named networks."""
