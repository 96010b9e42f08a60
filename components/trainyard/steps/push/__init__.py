"""Push: how a blessed model reaches the servers."""
