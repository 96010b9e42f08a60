"""The verbs of a cluster: `trainyard submit`, `explain`, `doctor`, `compile` and `place`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from trainyard.errors import ConfigurationError
from trainyard_control.cli.follow import show_troubled_steps
from trainyard_control.cli.options import (
    LOCAL,
    Day,
    DryRun,
    EnvironmentName,
    Label,
    Output,
    OutputFormat,
    Overrides,
    PackageFile,
    RecipeName,
    RecipeOrData,
    RunName,
    Step,
    UploadLimit,
    print_answer,
    print_lines,
    recipe_or_draft,
    say,
    say_left_out,
    say_table,
)

_MARKS = {"good": "✓", "bad": "✗", "unknown": "–"}
_HEAD = ("task", "step", "pool", "accelerators")
_MAX_BYTES = 4 << 20  # chosen: a hundred times the catalog's pipelines


def submit(
    environment: EnvironmentName,
    recipe: RecipeOrData = "digits",
    label: Label = None,
    set_: Overrides = None,
    name: RunName = None,
    day: Day = "",
    from_step: Annotated[
        Step | None,
        typer.Option("--from", help="Run this step and the following ones again."),
    ] = None,
    dry_run: DryRun = False,
    upload_limit: UploadLimit = "5Gi",
    output: OutputFormat = Output.TEXT,
) -> None:
    """Start a run on Kubeflow Pipelines or Vertex AI, and return.

    It is the run of `trainyard run -e`, which waits for the end. Data, weights and a teacher on this machine are
    uploaded to the storage first, unless it has them already.
    """
    from trainyard_control.api.packages import prepare
    from trainyard_control.cli.follow import show_all, upload_and_send
    from trainyard_control.cluster import environments

    loaded = environments.load(environment)  # data to draft from may be in its storage
    recipe = recipe_or_draft(recipe, label, loaded)
    submission = prepare(recipe, environment, set_ or [], name, day, from_step.value if from_step else None)
    say_left_out(recipe, set_)
    if not dry_run:
        done = upload_and_send(submission, upload_limit)
        print_answer(output, done.document(), lambda: None)
        return
    for key, upload in submission.uploads.items():
        source = "" if upload.is_cached else f" of {upload.path}"
        say(f"· {key}: {upload.bytes:,} bytes{source} would be uploaded to {upload.uri}", err=True)
    if submission.files:
        sizes = [(name, f"{size:,} bytes") for name, size in submission.files.items()]
        say_table([*sizes, ("sends", f"{sum(submission.files.values()):,} bytes of code")], err=True)
    show_all([submission], output)


def explain(
    run: Annotated[str, typer.Argument(help="Name or id of a run. Default: the newest on this machine.")] = "",
    environment: EnvironmentName = LOCAL,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Explain why a run waits or failed, and what to do."""
    from trainyard_control.cluster import environments

    loaded = environments.load(environment)
    if loaded.target == "local":
        from trainyard_control.local.local_run import explain_folder

        sentence, code = explain_folder(loaded.storage, run)
        answer = {"reason": sentence, "exit_code": int(code)}
        print_answer(output, answer, lambda: typer.echo(f"{sentence.rstrip('.')}."))
        return
    if not run:
        raise ConfigurationError("name a run, or its id. `trainyard runs list` shows them.")
    from trainyard_control.kubeflow.runs import KubeflowRuns

    runs = KubeflowRuns(loaded)
    view = runs.view(runs.find(run))

    def show() -> None:
        typer.echo(f"{view.reason.rstrip('.')}.")
        show_troubled_steps(view)

    print_answer(output, view.document(), show)


def doctor(
    recipe: Annotated[str | None, typer.Argument(help="Recipe to compile and check too.")] = None,
    environment: EnvironmentName = LOCAL,
    images: Annotated[bool, typer.Option("--images", help="Start a pod of each image, to see what it lacks.")] = False,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Check an environment before a run.

    Servers, permissions, pools, storage, images and policies are checked.
    """
    from trainyard.spec import recipe as recipes
    from trainyard_control.cluster import environments
    from trainyard_control.cluster.checks import worst
    from trainyard_control.kubeflow.doctor import examine

    loaded = environments.load(environment)
    if images and loaded.target != "kubeflow":
        raise ConfigurationError(f"--images: needs an environment of Kubeflow, and {loaded.name} is {loaded.target}.")
    found = examine(loaded, recipes.load(recipe) if recipe else None, images)
    checks = print_lines(output, found, lambda check: f"{_MARKS[check.verdict]} {check.name}: {check.sentence}")
    code = worst(checks)
    listed = [{"name": c.name, "verdict": c.verdict, "sentence": c.sentence, "exit_code": int(c.code)} for c in checks]
    print_answer(output, {"exit_code": int(code), "checks": listed}, lambda: None)
    if code:
        raise typer.Exit(code)


def compile(
    recipe: RecipeName = "digits", environment: EnvironmentName = LOCAL, set_: Overrides = None, to: PackageFile = "-"
) -> None:
    """Compile a recipe into a pipeline package.

    Its steps are placed on the pools of the environment.
    """
    from trainyard_control import api

    write(to, api.compile(recipe, environment=environment, set_=set_ or []))


def write(file: str, text: str) -> None:
    """Write `text` to `file` atomically; '-' is stdout."""
    from trainyard import uris
    from trainyard.storage import storage

    if file == "-":
        sys.stdout.write(text)
        return
    if fault := uris.path_error(file):
        raise ConfigurationError(f"--to {file}: {fault}.")
    path = Path(file).absolute()
    try:
        if path.is_dir():
            raise ConfigurationError(f"--to {file}: is a folder. Name a file in it.")
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")  # a pipe or a device such as /dev/null, which must not be replaced
        else:
            storage.write_text(str(path), text)
    except OSError as error:
        raise ConfigurationError(f"--to {file}: cannot be written ({error.strerror}). Name another file.") from error
    say(f"✓ wrote {file}", err=True)


def place(
    file: Annotated[Path, typer.Argument(help="Pipeline package from `kfp dsl compile`.")],
    environment: EnvironmentName = LOCAL,
    to: PackageFile = "-",
) -> None:
    """Place a compiled pipeline on the pools of an environment."""
    from trainyard_control.cluster import environments
    from trainyard_control.compiler import placement
    from trainyard_control.compiler.compilation import to_yaml

    spec, platform = _read(file)
    loaded = environments.load(environment)
    placed = placement.place(spec, loaded, platform)
    for sentence in placement.bounded_retries(placed, loaded):
        say(f"! {sentence}", err=True)
    if rows := placement.table(spec, loaded):
        say_table([_HEAD, *rows], err=True)
    write(to, to_yaml(placed.documents))


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Read the IR in `file`, and the platform spec if the package has one."""
    from trainyard.spec import plain_yaml
    from trainyard.spec.documents import read_text

    text = read_text(file, _MAX_BYTES)
    try:
        documents = plain_yaml.load_all(text)
    except ValueError as error:
        raise ConfigurationError(f"{file}: not valid YAML ({error}). Name a compiled pipeline.") from error
    spec = documents[0] if documents else None
    if not isinstance(spec, dict) or not {"root", "components", "deploymentSpec"} <= spec.keys() or len(documents) > 2:
        raise ConfigurationError(
            f"{file}: not a compiled pipeline, no root, components and deploymentSpec in it. "
            "Write one with `kfp dsl compile` or `trainyard compile`."
        )
    return spec, documents[1] if len(documents) == 2 else None
