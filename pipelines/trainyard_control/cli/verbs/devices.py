"""`trainyard devices`: register, list, check and remove the machines that measure exported files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainyard.errors import ExitCode, TrainyardError
from trainyard_control.cli.options import Output, OutputFormat, print_answer, print_lines, say, say_table

if TYPE_CHECKING:
    from trainyard.steps.export.devices import DeviceSummary

    _Checked = tuple[str, DeviceSummary | TrainyardError]

app = typer.Typer(no_args_is_help=True, help="Register machines that measure exported files over SSH.")


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name in `export.devices` of recipes, such as pi.")],
    ssh: Annotated[
        str,
        typer.Option(
            "--ssh",
            metavar="USER@HOST",
            help="Address for ssh: user@host, user@host:port, or a host of ~/.ssh/config.",
        ),
    ],
    python: Annotated[
        str, typer.Option("--python", metavar="COMMAND", help="Python on the device that has ai-edge-litert.")
    ] = "python3",
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Register a device that cannot be reached now, without a check.")
    ] = False,
) -> None:
    """Register a device, after a check.

    Host key, login, Python, ai-edge-litert and disk are checked; a device that cannot measure is not registered.
    Connect once with ssh before, to accept its host key. Recipes name the device with its limits: `export: {devices:
    {pi: {latency_ms_p95: 20}}}`.
    """
    from trainyard.spec import devices
    from trainyard.steps.export.devices import check as check_device

    device = devices.require_new(name, ssh, python)
    if not no_check:
        say(_line((name, check_device(name, device))))
    file = devices.add(name, device)
    say(f"✓ registered in {file}", err=True)


@app.command("list")
def list_(output: OutputFormat = Output.TEXT) -> None:
    """List the registered devices."""
    from trainyard.spec import devices

    found = {name: devices.find(name) for name in devices.names()}
    documents = [{"name": name, **device.model_dump()} for name, device in found.items()]

    def show() -> None:
        if found:
            say_table([("NAME", "SSH", "PYTHON"), *((name, each.ssh, each.python) for name, each in found.items())])
        else:
            say("No device is registered. Register one with `trainyard devices add NAME --ssh USER@HOST`.", err=True)

    print_answer(output, documents, show)


@app.command("check")
def check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Device to check. Default: all.")] = "",
    output: OutputFormat = Output.TEXT,
) -> None:
    """Check that devices can measure.

    The exit code is 0 if all can, otherwise that of the most severe fault.
    """
    from concurrent.futures import ThreadPoolExecutor

    from trainyard.errors import ConfigurationError
    from trainyard.spec import devices
    from trainyard_control.cluster.checks import SEVERITY

    wanted = [name] if name else devices.names()
    if not wanted:
        raise ConfigurationError(
            "no device is registered. Register one with `trainyard devices add NAME --ssh USER@HOST`."
        )
    if name:
        devices.require([name])
    with ThreadPoolExecutor(len(wanted)) as pool:
        checked = print_lines(output, pool.map(_check, wanted), _line)
    documents = [_document(each) for each in checked]
    code = max((each["exit_code"] for each in documents), key=lambda code: SEVERITY[code])
    print_answer(output, {"exit_code": code, "devices": documents}, lambda: None)
    if code:
        raise typer.Exit(code)


@app.command("remove")
def remove(name: Annotated[str, typer.Argument(metavar="NAME", help="Device to remove.")]) -> None:
    """Remove a device. Nothing changes on the machine."""
    from trainyard.spec import devices

    devices.remove(name)
    say(f"✓ removed {name}", err=True)


def _check(name: str) -> _Checked:
    from trainyard.spec import devices
    from trainyard.steps.export.devices import check as check_device

    try:
        return name, check_device(name, devices.find(name))
    except TrainyardError as error:
        return name, error


def _document(checked: _Checked) -> dict[str, Any]:
    name, found = checked
    if isinstance(found, TrainyardError):
        return {"name": name, "exit_code": int(found.exit_code), "fault": str(found)}
    return {"name": name, "exit_code": int(ExitCode.DONE), **found.model_dump()}


def _line(checked: _Checked) -> str:
    name, found = checked
    if isinstance(found, TrainyardError):
        return f"✗ {' '.join(map(str, found.args))}"
    return (
        f"✓ {name}: {found.machine}, {found.cpus} CPUs; Python {found.python}; ai-edge-litert {found.litert}; "
        f"{found.free_mb / 1000:,.1f} GB free"
    )
