"""The faults are made in the same gangs that tests/local starts."""

import sys
from pathlib import Path

import trainyard.data  # noqa: F401 - before a test's module imports TensorFlow, which takes half as long then

sys.path.insert(0, str(Path(__file__).parents[1] / "local"))
