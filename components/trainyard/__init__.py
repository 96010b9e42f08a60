"""Trainyard from Python: `import trainyard as ty; run = ty.run("digits", train__epochs=3)`.

The functions are those of `trainyard_control.api`, which the command line calls too. They are loaded at their first
use: what runs inside a step of a pipeline imports this package, and needs none of them. See `__init__.pyi` for types.
"""

import importlib as _importlib

__all__ = [
    "Forecast",
    "Model",
    "Predictions",
    "Report",
    "Run",
    "Runs",
    "Submitted",
    "TrainyardError",
    "bench",
    "compile",
    "load",
    "plan",
    "run",
    "runs",
    "submit",
    "sweep",
]

_API = "trainyard_control.api"


def __getattr__(name: str) -> object:
    """Load what people call from Python (PEP 562). Raises `AttributeError` for every other name."""
    if name not in __all__:
        raise AttributeError(f"module 'trainyard' has no attribute {name!r}. It has: {', '.join(__all__)}.")
    try:
        api = _importlib.import_module(_API)
    except ModuleNotFoundError as error:
        missing = (error.name or _API).partition(".")[0]
        raise AttributeError(
            f"trainyard.{name}: the package {missing} is not installed here. Install trainyard as a whole."
        ) from error
    globals().update({known: getattr(api, known) for known in __all__})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
