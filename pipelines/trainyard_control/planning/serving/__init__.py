"""How many replicas answer so many queries a second in time, by the measured latency of the exported files."""
