"""`python -m trainyard.steps STEP …`: one step alone, over local paths or URIs."""

import argparse
import importlib
import sys

from trainyard.graph import OUTPUTS, entry_point
from trainyard.runtime import step

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m trainyard.steps", description=__doc__)
    parser.add_argument("step", choices=OUTPUTS)
    name = parser.parse_args(sys.argv[1:2]).step
    step.main(importlib.import_module(entry_point(name)).run, sys.argv[2:])
