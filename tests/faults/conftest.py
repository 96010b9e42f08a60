"""The faults are made in the same gangs that tests/local starts."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "local"))
