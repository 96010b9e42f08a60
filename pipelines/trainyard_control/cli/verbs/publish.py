"""`trainyard publish`: hand a pushed version over to another system."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainyard_control.cli.options import (
    LOCAL,
    AnswerLog,
    DryRun,
    EnvironmentName,
    ModelName,
    Output,
    OutputFormat,
    Sample,
    VersionName,
    print_answer,
    say,
    say_table,
)

if TYPE_CHECKING:
    from trainyard_control.api.publish import Published

CanaryPercent = Annotated[
    int | None, typer.Option("--canary-percent", min=0, max=100, help="Share of the requests. Default: all.")
]
app = typer.Typer(no_args_is_help=True, help="Publish a pushed version to another system.")


@app.command("huggingface")
def huggingface(
    model: VersionName,
    environment: EnvironmentName = LOCAL,
    folder: Annotated[Path | None, typer.Option("--folder", help="New folder to write the repository to.")] = None,
    repository: Annotated[
        str, typer.Option("--repository", metavar="OWNER/NAME", help="Repository of the Hub to upload to.")
    ] = "",
    public: Annotated[bool, typer.Option("--public", help="Create the repository as public.")] = False,
    dry_run: DryRun = False,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Write a version as a Hugging Face repository, or upload it.

    A repository that does not exist is created, private without --public.
    """
    from trainyard_control.api.publish import huggingface as publish

    done = publish(model, environment=environment, folder=folder, repository=repository, public=public, dry_run=dry_run)

    def print_request(done: Published) -> None:
        say_table([("BYTES", "FILE"), *((f"{size}", name) for name, size in done.request["files"].items())])
        for call in ("create_repo", "upload_folder"):
            if call in done.request:
                say(f"{call} {json.dumps(done.request[call])}")

    _print(done, output, print_request)


@app.command("kserve")
def kserve(
    model: VersionName,
    environment: EnvironmentName,
    name: ModelName = None,
    canary_percent: CanaryPercent = None,
    log: AnswerLog = None,
    sample: Sample = None,
    dry_run: DryRun = False,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Create or update a KServe InferenceService.

    It runs `trainyard serve` in the environment's namespace, with images.cpu and service_accounts.server.
    """
    from trainyard.serving.options import LogOptions
    from trainyard_control.api.publish import kserve as publish

    logged = LogOptions.from_texts(log, sample)
    done = publish(
        model, environment=environment, name=name, canary_percent=canary_percent, log=logged, dry_run=dry_run
    )
    _print(done, output)
    if dry_run and canary_percent is not None:
        say("· In KServe's deployment mode Standard, this predictor would be the entry of spec.canary", err=True)


@app.command("kubeflow")
def kubeflow(
    model: VersionName,
    environment: EnvironmentName,
    name: ModelName = None,
    dry_run: DryRun = False,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Register a version in Kubeflow's Model Registry.

    Its address is kubeflow.model_registry of the environment.
    """
    from trainyard_control.api.publish import kubeflow as publish

    done = publish(model, environment=environment, name=name, dry_run=dry_run)
    _print(done, output)


@app.command("mlflow")
def mlflow(
    model: VersionName,
    environment: EnvironmentName = LOCAL,
    name: ModelName = None,
    dry_run: DryRun = False,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Log a version as an MLflow run, and register it.

    The server is that of MLFLOW_TRACKING_URI.
    """
    from trainyard_control.api.publish import mlflow as publish

    done = publish(model, environment=environment, name=name, dry_run=dry_run)
    _print(done, output)


@app.command("vertex")
def vertex(
    model: VersionName,
    environment: EnvironmentName,
    name: ModelName = None,
    endpoint: Annotated[str, typer.Option("--endpoint", metavar="ID", help="Endpoint to deploy to.")] = "",
    machine: Annotated[
        str, typer.Option("--machine-type", metavar="TYPE", help="Machine of the endpoint.")
    ] = "n1-standard-2",
    canary_percent: CanaryPercent = None,
    dry_run: DryRun = False,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Upload a version to Vertex AI, and deploy it.

    Its container is images.cpu of the environment, in the project of its section vertex.
    An endpoint that does not exist is created. Vertex AI may take half an hour.
    """
    from trainyard_control.api.publish import vertex as publish

    done = publish(
        model,
        environment=environment,
        name=name,
        endpoint=endpoint,
        machine=machine,
        canary_percent=canary_percent,
        dry_run=dry_run,
    )
    _print(done, output)


def _print_yaml(done: Published) -> None:
    import yaml

    print(yaml.safe_dump(done.request, sort_keys=False, allow_unicode=True), end="")


def _print(done: Published, output: Output, print_request: Callable[[Published], None] = _print_yaml) -> None:
    """Print the request of a dry run, or where the version is published."""
    document = {"version": done.version.number, "folder": done.version.folder, "request": done.request}
    document |= {"place": done.place, "remark": done.remark}
    print_answer(output, document, lambda: None if done.place else print_request(done))
    if done.place:
        say(f"✓ {done.version.name} is published to {done.place}", err=True)
    elif done.remark:
        say(f"✗ {done.version.name} would not be published: {done.remark}", err=True)
    else:
        say(f"· {done.version.name} would be published", err=True)
