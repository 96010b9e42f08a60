"""`python -m trainyard.steps.push`: the step alone, over local paths or URIs."""

from trainyard.runtime import step
from trainyard.steps.push import run

if __name__ == "__main__":
    step.main(run.run)
