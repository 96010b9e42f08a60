"""`python -m trainyard.train`: the step alone, over local paths or URIs."""

from trainyard.core import step
from trainyard.train import run

if __name__ == "__main__":
    step.main(run.run)
