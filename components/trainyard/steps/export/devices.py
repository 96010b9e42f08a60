"""Exported files timed on other machines over SSH, and their limits.

A device is a host of OpenSSH's client, which knows its address, user, key and host key. One connection sends a script
and the file; nothing stays on the machine.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from trainyard.contract.artifacts.export import DeviceTiming, ExportedFile
from trainyard.contract.artifacts.gate import Threshold
from trainyard.errors import ConfigurationError, InfrastructureError, TrainyardError, TransientError
from trainyard.spec.recipe import DeviceLimits
from trainyard.steps.export.on_device import timing

_CONNECT_SECONDS, _SECONDS = 10, 300  # chosen: a sleeping board answers in seconds; a slow one loads its libraries
_NO_CONNECTION, _NO_PROGRAM = 255, 127  # exit codes of ssh and of the shell that it starts


def measure(name: str, limits: DeviceLimits, path: Path) -> DeviceTiming:
    """Time the LiteRT file at `path` on the device.

    Raises `TransientError` if it does not answer, `InfrastructureError` if it is not the known machine or refuses the
    login, `ConfigurationError` if it cannot run the file.
    """
    script = Path(timing.__file__).read_text(encoding="utf-8")
    options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_SECONDS}"]
    command = ["ssh", *options, "--", name, f"{limits.python} -c {shlex.quote(script)}"]
    try:
        with path.open("rb") as file:
            done = subprocess.run(command, stdin=file, capture_output=True, timeout=_SECONDS)
    except FileNotFoundError as error:
        raise ConfigurationError(
            "export.devices: needs ssh, which is not on the PATH here. Install OpenSSH's client, or leave it out."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise TransientError(
            f"export.devices.{name}: gave no figures within {_SECONDS} s. Look what keeps it busy, and run again."
        ) from error
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode:
        raise _failure(name, limits, done.returncode, said)
    try:
        found = json.loads(done.stdout.decode().splitlines()[-1])
        if "missing" in found:
            raise _unfit(name, limits, f"cannot import LiteRT ({found['missing']})")
        return DeviceTiming.model_validate({"device": name, **found})
    except (IndexError, TypeError, UnicodeError, json.JSONDecodeError, ValidationError) as error:
        raise _unfit(name, limits, "printed no figures") from error


def judge(name: str, limits: DeviceLimits, file: ExportedFile, timed: DeviceTiming) -> Iterator[Threshold]:
    """Yield the conditions on a file that was timed on the device."""
    fastest = min(timed.latency_ms.values(), key=lambda latency: latency.p95)
    for unit, value, bound in (
        ("p95 in ms", fastest.p95, limits.latency_ms_p95),
        ("size in MB", file.bytes / 1e6, limits.size_mb),
        ("peak memory in MB", timed.memory_mb, limits.memory_mb),
    ):
        if bound is not None:
            yield Threshold(
                name=f"{file.format} on {name}: {unit} <= {bound:g}",
                value=value,
                bound=bound,
                passed=value <= bound,
                note=f"on {timed.machine}",
            )


def _failure(name: str, limits: DeviceLimits, code: int, said: str) -> TrainyardError:
    prefix, last = f"export.devices.{name}", (said.splitlines() or ["no message"])[-1]
    if code == _NO_PROGRAM:
        return _unfit(name, limits, f"does not start ({last})")
    if code != _NO_CONNECTION:
        return _unfit(name, limits, f"ended with {code} ({last})")
    if "Host key verification failed" in said:
        return InfrastructureError(
            f"{prefix}: its host key is not the known one. Compare the machine's key with the one that `ssh {name}` "
            f"shows; if the machine is new, run `ssh-keygen -R {name}` and connect once."
        )
    if "Permission denied" in said:
        return InfrastructureError(f"{prefix}: refuses the login ({last}). Run `ssh-copy-id {name}`.")
    return TransientError(f"{prefix}: cannot be reached ({last}). Check it with `ssh {name}`, and run again.")


def _unfit(name: str, limits: DeviceLimits, fault: str) -> ConfigurationError:
    return ConfigurationError(
        f"export.devices.{name}: its {limits.python} {fault}. Install ai-edge-litert there, or name another Python by "
        "`python`."
    )
