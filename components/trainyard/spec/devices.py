"""The devices of this user: machines that OpenSSH's client reaches, one YAML file each, named as the device."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from trainyard.errors import ConfigurationError, InfrastructureError, did_you_mean, listed
from trainyard.spec import documents, plain_yaml
from trainyard.spec.documents import Strict, safe

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
"""The pattern of a device's name."""

_ADDRESS = r"^([A-Za-z0-9_][A-Za-z0-9_.-]{0,62}@)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}(:[0-9]{1,5})?$"
_PYTHON = r"^[A-Za-z0-9_~/.][A-Za-z0-9_~/. -]{0,254}$"
_SHOWN = 10  # names in a sentence; chosen


class Device(Strict):
    """A machine that measures exported files over SSH."""

    ssh: Annotated[str, Field(pattern=_ADDRESS)] = Field(
        description="user@host, user@host:port, or a host of ~/.ssh/config."
    )
    python: Annotated[str, Field(pattern=_PYTHON)] = Field(
        "python3", description="Command of the machine's Python with ai-edge-litert."
    )

    @property
    def address(self) -> list[str]:
        """The arguments of ssh that name the machine.

        >>> Device(ssh="me@board:2222").address
        ['-p', '2222', 'me@board']
        """
        host, _, port = self.ssh.partition(":")
        return ["-p", port, host] if port else [host]


def folder() -> Path:
    """Return the folder of the files."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home, "trainyard", "devices").expanduser()


def names() -> list[str]:
    """Return the names of the registered devices."""
    return sorted(path.stem for path in folder().glob("*.yaml") if re.fullmatch(NAME, path.stem))


def find(name: str) -> Device:
    """Return the device `name`. Raises `ConfigurationError` with the nearest name if it is not registered."""
    require([name])
    return documents.load(_file(name), Device)


def require(wanted: Iterable[str], prefix: str = "") -> None:
    """Raise `ConfigurationError` if one of the names is not registered. prefix: where they are, for the message."""
    if not (wanted := list(wanted)):
        return
    known = names()
    have = f"Registered: {listed(known, _SHOWN)}." if known else "None is registered."
    if unknown := [safe(name) for name in wanted if name not in known]:
        raise ConfigurationError(
            *(
                f"{prefix}no device '{name}'. {have}{did_you_mean(name, known)} "
                f"Register it with `trainyard devices add {name} --ssh USER@HOST`."
                for name in unknown
            )
        )


def require_new(name: str, ssh: str, python: str) -> Device:
    """Return the device for `add`. Raises `ConfigurationError` for an invalid value, or a name that is registered."""
    if not re.fullmatch(NAME, name):
        raise ConfigurationError(
            f"device '{safe(name)}': not a name. Use at most 63 letters, digits, '.', '_' and '-', and start with a "
            "letter or digit."
        )
    if name in names():
        raise _registered(name)
    for option, pattern, value in (("ssh", _ADDRESS, ssh), ("python", _PYTHON, python)):
        if not re.fullmatch(pattern, value):
            meaning = Device.model_fields[option].description
            raise ConfigurationError(f"--{option} '{safe(value)}': is not allowed. Give: {meaning}")
    return Device(ssh=ssh, python=python)


def add(name: str, device: Device) -> Path:
    """Write the file of the device, complete or not at all, and return it.

    Raises `ConfigurationError` if the name is registered, also by another process meanwhile, and `InfrastructureError`
    if the file cannot be written.
    """
    file = _file(name)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".") as temporary:
            temporary.write(plain_yaml.dump(device.model_dump()))
            temporary.flush()
            os.fsync(temporary.fileno())
            os.link(temporary.name, file)  # unlike a rename, it replaces nothing
    except OSError as error:
        raise _registered(name) if file.exists() else _unwritable(file, error) from error
    return file


def remove(name: str) -> None:
    """Delete the file of the device. Raises `ConfigurationError` with the nearest name if it is not registered."""
    require([name])
    try:
        _file(name).unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(_file(name), error) from error


def _file(name: str) -> Path:
    return folder() / f"{name}.yaml"


def _unwritable(file: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"{file}: cannot be written ({error.strerror}). Free space, grant the permission, or set XDG_CONFIG_HOME to "
        "another folder."
    )


def _registered(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"device '{name}': is registered already, in {_file(name)}. Choose another name, or remove it first with "
        f"`trainyard devices remove {name}`."
    )
