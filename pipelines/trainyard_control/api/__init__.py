"""The Python API: the commands of the CLI as functions. `import trainyard` offers them too."""

from trainyard.errors import TrainyardError
from trainyard_control.api.evaluation import LabelledEvaluation, evaluate
from trainyard_control.api.forecast import Forecast, plan
from trainyard_control.api.model import Model, Predictions, load
from trainyard_control.api.packages import Submitted, compile, submit
from trainyard_control.api.run import Report, Run, Runs, run, runs
from trainyard_control.api.search import bench, sweep
from trainyard_control.api.versions import Version, Versions, versions

__all__ = [
    "Forecast",
    "LabelledEvaluation",
    "Model",
    "Predictions",
    "Report",
    "Run",
    "Runs",
    "Submitted",
    "TrainyardError",
    "Version",
    "Versions",
    "bench",
    "compile",
    "evaluate",
    "load",
    "plan",
    "run",
    "runs",
    "submit",
    "sweep",
    "versions",
]
