"""The catalog of accelerators and machines, and the pools that environments make of them."""
