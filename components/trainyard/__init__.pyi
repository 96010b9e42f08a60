# The types of what `__init__.py` loads at its first use.
from trainyard_control.api import *  # noqa: F403 - its __all__
from trainyard_control.api import __all__ as __all__
