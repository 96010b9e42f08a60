"""Exported files timed on other machines over SSH, and their limits.

One connection to a device sends a script and the file; nothing stays on the machine. OpenSSH's client knows user, key
and host key, and no host key is accepted here.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from trainyard.contract.artifacts.export import DeviceTiming, ExportedFile
from trainyard.contract.artifacts.gate import Threshold
from trainyard.contract.document import FrozenModel
from trainyard.errors import ConfigurationError, InfrastructureError, TrainyardError, TransientError
from trainyard.spec.devices import Device
from trainyard.spec.recipe import DeviceLimits
from trainyard.steps.export.on_device import timing

# Chosen: a sleeping board answers in seconds; a slow one loads its libraries.
_CONNECT_SECONDS, _CHECK_SECONDS, _SECONDS = 10, 120, 300
_NO_CONNECTION, _NOT_STARTED = 255, (126, 127)  # exit codes of ssh and of the shell that it starts
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": f"{_CONNECT_SECONDS}",
    "ServerAliveInterval": f"{_CONNECT_SECONDS}",
    "StrictHostKeyChecking": "yes",
}


class DeviceSummary(FrozenModel):
    """A device that can measure. machine: its board or CPU. free_mb: on the disk of its temporary files."""

    machine: str
    cpus: int
    python: str
    litert: str
    free_mb: float


_Printed = TypeVar("_Printed", bound=FrozenModel)


def measure(name: str, device: Device, path: Path) -> DeviceTiming:
    """Time the LiteRT file at `path` on the device.

    Raises `TransientError` if it does not answer, `InfrastructureError` if it is not the known machine, refuses the
    login or has a full disk, `ConfigurationError` if it cannot run the file.
    """
    return _ask(name, device, path, _SECONDS, DeviceTiming, {"device": name})


def check(name: str, device: Device) -> DeviceSummary:
    """Return the summary of a device that can measure. Raises as `measure`."""
    return _ask(name, device, Path("/dev/null"), _CHECK_SECONDS, DeviceSummary, {})


def judge(name: str, limits: DeviceLimits, file: ExportedFile, timed: DeviceTiming) -> Iterator[Threshold]:
    """Yield the conditions on a file that was timed on the device."""
    for unit, value, bound in (
        ("p95 in ms", timed.fastest.p95, limits.latency_ms_p95),
        ("size in MB", file.bytes / 1e6, limits.size_mb),
        ("peak memory in MB", timed.memory_mb, limits.memory_mb),
    ):
        if bound is not None:
            yield Threshold(
                name=f"{file.format} on {name}: {unit} <= {bound:g}",
                value=value,
                bound=bound,
                passed=value <= bound,
                note="" if unit == "size in MB" else f"on {timed.machine}",
            )


def _ask(
    name: str, device: Device, path: Path, seconds: int, printed: type[_Printed], fields: dict[str, Any]
) -> _Printed:
    """Run the script on the device with the file as its input, and return what it printed, with more `fields`."""
    script = Path(timing.__file__).read_text(encoding="utf-8")
    try:
        with path.open("rb") as file:
            done = _ssh(device, [], f"{device.python} -c {shlex.quote(script)}", file, seconds)
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"device {name}: needs ssh, which is not on the PATH here. Install OpenSSH's client."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise TransientError(
            f"device {name}: gave no figures within {seconds} s. Look what keeps it busy, and run again."
        ) from error
    if done.returncode:
        raise _failure(name, device, done.returncode, done.stderr.decode(errors="replace").strip())
    try:
        found = json.loads(done.stdout.decode().splitlines()[-1])
        if "missing" in found:
            raise _unfit(name, device, f"cannot import LiteRT ({found['missing']})")
        if "unwritable" in found:
            raise InfrastructureError(
                f"device {name}: cannot write a temporary file ({found['unwritable']}). Free space in /tmp there, or "
                "correct its permissions."
            )
        return printed.model_validate({**fields, **found})
    except (IndexError, TypeError, UnicodeError, json.JSONDecodeError, ValidationError) as error:
        raise _unfit(name, device, "printed no figures") from error


def _ssh(device: Device, more: list[str], command: str, stdin: Any, seconds: int) -> subprocess.CompletedProcess[bytes]:
    options = [f"-o{name}={value}" for name, value in _OPTIONS.items()]
    line = ["ssh", "-T", *options, *more, *device.address, command]
    return subprocess.run(line, stdin=stdin, capture_output=True, timeout=seconds)


def _failure(name: str, device: Device, code: int, said: str) -> TrainyardError:
    prefix, last, ssh = f"device {name}", (said.splitlines() or ["no message"])[-1], " ".join(device.address)
    if code in _NOT_STARTED:
        return _unfit(name, device, f"does not start ({last})")
    if code != _NO_CONNECTION:
        return _unfit(name, device, f"ended with {code} ({last})")
    if "Host key verification failed" in said:
        key = _host_key(device)
        kind = next((kind for kind in ("rsa", "ecdsa") if kind in key), "ed25519")
        known = re.search(r"Offending \S+ key in (\S+):(\d+)", said)
        if known:
            return InfrastructureError(
                f"{prefix}: its host key changed, to {key}. It may be another machine. If it was reinstalled, delete "
                f"line {known[2]} of {known[1]}, connect with `ssh {ssh}`, and compare the key before you accept it."
            )
        return InfrastructureError(
            f"{prefix}: its host key is not known, {key}. Connect once with `ssh {ssh}`, and accept the key if "
            f"`ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub` prints the same on the device."
        )
    if "Permission denied" in said:
        return InfrastructureError(f"{prefix}: refuses the login ({last}). Run `ssh-copy-id {ssh}`.")
    return TransientError(f"{prefix}: cannot be reached ({last}). Check it with `ssh {ssh}`, and run again.")


def _host_key(device: Device) -> str:
    """Return type and fingerprint of the device's host key; no key is accepted and nothing runs there."""
    try:
        said = _ssh(device, ["-v"], "true", subprocess.DEVNULL, 2 * _CONNECT_SECONDS).stderr.decode(errors="replace")
    except subprocess.TimeoutExpired:
        said = ""
    found = re.findall(r"Server host key: (\S+) (\S+)", said)  # of a jump host first
    return " ".join(found[-1]) if found else "whose fingerprint ssh does not show"


def _unfit(name: str, device: Device, fault: str) -> ConfigurationError:
    return ConfigurationError(
        f"device {name}: its {device.python} {fault}. Run `ssh {' '.join(device.address)} 'python3 -m venv "
        "trainyard && trainyard/bin/pip install ai-edge-litert'`, and register it with --python trainyard/bin/python."
    )
