"""Export: what leaves for servers and devices."""
