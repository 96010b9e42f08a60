"""`python -m trainyard.steps.train`: the step alone, over local paths or URIs."""

from trainyard.runtime import step
from trainyard.steps.train import run

if __name__ == "__main__":
    step.main(run.run)
