# The types of what `__init__.py` loads at its first use. A test holds the names equal.
from trainyard_control.api import Forecast as Forecast
from trainyard_control.api import Model as Model
from trainyard_control.api import Predictions as Predictions
from trainyard_control.api import Report as Report
from trainyard_control.api import Run as Run
from trainyard_control.api import Runs as Runs
from trainyard_control.api import Submitted as Submitted
from trainyard_control.api import TrainyardError as TrainyardError
from trainyard_control.api import bench as bench
from trainyard_control.api import compile as compile
from trainyard_control.api import load as load
from trainyard_control.api import plan as plan
from trainyard_control.api import run as run
from trainyard_control.api import runs as runs
from trainyard_control.api import submit as submit
from trainyard_control.api import sweep as sweep
