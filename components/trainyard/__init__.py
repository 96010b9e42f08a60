"""Trainyard from Python: `import trainyard as ty; run = ty.run("digits", train__epochs=3)`.

The functions are those of `trainyard_control.api`, which lists them and which the command line calls too. They are
loaded at their first use: a step of a pipeline imports this package and needs none of them.
"""

import importlib as _importlib
from importlib.util import find_spec as _find_spec

_API = "trainyard_control.api"


def __getattr__(name: str) -> object:
    """Load a function or class of the API (PEP 562). Raises `AttributeError` for every other name."""
    # `from trainyard import errors` asks here first, and must not load the control plane.
    if (name.startswith("_") and name != "__all__") or _find_spec(f"{__name__}.{name}"):
        raise AttributeError(name)
    try:
        api = _importlib.import_module(_API)
    except ModuleNotFoundError as error:
        missing = (error.name or _API).partition(".")[0]
        raise AttributeError(
            f"trainyard.{name}: the package {missing} is not installed here. Install trainyard as a whole."
        ) from error
    names = ["__all__", *api.__all__]
    if name not in names:
        raise AttributeError(f"module 'trainyard' has no attribute {name!r}. It has: {', '.join(api.__all__)}.")
    globals().update({known: getattr(api, known) for known in names})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})  # type: ignore[misc]
