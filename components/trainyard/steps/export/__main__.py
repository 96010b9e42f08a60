"""`python -m trainyard.steps.export`: the step alone, over local paths or URIs."""

from trainyard.runtime import step
from trainyard.steps.export import run

if __name__ == "__main__":
    step.main(run.run)
