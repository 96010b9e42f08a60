"""The catalog of accelerators and machines, and the node pools of environments."""
