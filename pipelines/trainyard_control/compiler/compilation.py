"""Compiles the training pipeline for one recipe and one environment: a pure function of the two and of this code.

Names in the request of a run hold the content's digest, so that sending it twice creates one object. Its metadata are a
pipeline parameter that `runs` and `explain` read, and no step.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from trainyard.contract import keys
from trainyard.contract.gang import VARIABLE, GangSpec, check_input_workers, check_one_cpu, gang_spec, unequal_parts
from trainyard.contract.window import day_of
from trainyard.errors import ConfigurationError
from trainyard.graph import PREDICT, STEPS
from trainyard.kubernetes.client import Manifest
from trainyard.spec import code, documents, packages
from trainyard.spec import recipe as recipes
from trainyard.spec.archive import Archive
from trainyard.spec.environment import Environment
from trainyard.spec.networks import IMAGENET
from trainyard.spec.recipe import Recipe
from trainyard.spec.schedule import When
from trainyard.storage import uploads
from trainyard.storage.uploads import Upload
from trainyard.uris import is_bucket
from trainyard_control.compiler.pipeline_spec import GANG
from trainyard_control.compiler.placement import PlacedSpec, place
from trainyard_control.planning import python_packages
from trainyard_control.planning.expectation import Expectation
from trainyard_control.planning.history import Estimate

_RUN_NAME = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")  # a DNS label: Vertex AI takes no other
_DIGEST = 12
_METADATA_PARAMETER = "about"
_LONGEST = 40  # characters of the environment's name; a label of Vertex AI has at most 63


def compiled(
    recipe: Recipe, environment: Environment, when: When | None = None, day: str = "", again: str = ""
) -> PlacedSpec:
    """Return the placed training pipeline whose parameters default to `recipe` and `environment`.

    With `when` it is the pipeline that first looks whether a condition of a schedule holds. With `day` a window of data
    ends before that day, and not before the one that the run is scheduled for. With `again` that step and all after it
    are done again, whatever is there.

    Raises `ConfigurationError` if the recipe names what only this machine has and the environment is elsewhere, and
    if it reads no window for `day`.
    """
    if day and recipe.data.window_days is None:
        raise ConfigurationError(
            f"--day {day}: {recipe.name} reads no window of days. "
            "Set data.window_days in the recipe, or leave --day out."
        )
    _check_portable(recipe, environment)
    if recipe.export.devices and environment.target != "local":
        raise ConfigurationError(
            f"{recipe.name}: export.devices: a pod has neither ssh nor the keys of this machine. Leave it out with "
            "--set export.devices={}, or use `trainyard run`."
        )
    _check_gang(recipe, environment)
    # kfp takes a second or two to import: only who compiles waits for it.
    from trainyard_control.catalog.retrain import retrain_on_drift_pipeline, retrain_pipeline
    from trainyard_control.catalog.train import train_pipeline

    pipeline = train_pipeline if when is None else retrain_on_drift_pipeline if when.drift else retrain_pipeline
    more = {"when": when.model_dump_json()} if when else {}
    if again:
        more["again"] = again
    return _placed(pipeline, recipe, environment, more, day)


def compiled_benchmark(recipe: Recipe, environment: Environment, label: str) -> PlacedSpec:
    """Return the placed pipeline that preprocesses and trains only; its model's folder has the `label`.

    Raises as `compiled`.
    """
    _check_portable(recipe, environment)
    _check_gang(recipe, environment)
    from trainyard_control.catalog.benchmark import benchmark_pipeline

    return _placed(benchmark_pipeline, recipe, environment, {"label": label})


def _placed(pipeline: Any, recipe: Recipe, environment: Environment, more: dict[str, str], day: str = "") -> PlacedSpec:
    """Return the placed pipeline, its parameters' defaults those of the recipe and the environment, and `more`."""
    defaults = {
        "recipe": recipes.parameter(recipe),
        "storage": environment.storage,
        "code": keys.code_digest(),
    }
    spec = _with_defaults(pipeline, recipe.name, environment, defaults | more)
    _fill_in_time(spec, day_of(day, recipe.data) if day else "")
    return place(spec, environment)


def compiled_prediction(model: str, inputs: str, predictions: str, key: str, environment: Environment) -> PlacedSpec:
    """Return the placed pipeline that writes the answers of `model` to `inputs` into the folder `predictions`.

    Raises `ConfigurationError` if one of them is on this machine alone and the environment is elsewhere.
    """
    locations = {"MODEL": model, "INPUT": inputs, "--out": predictions}
    faults = [
        f"{name} '{place}' is on this machine, and the step of target {environment.target} runs elsewhere. Name its "
        "place in a bucket, or on the environment's volume."
        for name, place in locations.items()
        if not reachable(place, environment)
    ]
    if faults and environment.target != "local":
        raise ConfigurationError(*faults)
    from trainyard_control.catalog.predict import predict_pipeline

    defaults = {
        "model": model,
        "inputs": inputs,
        "predictions": predictions,
        "key": key,
        "code": keys.code_digest(),
        "storage": environment.storage,
    }
    return place(_with_defaults(predict_pipeline, PREDICT, environment, defaults), environment)


def _with_defaults(pipeline: Any, recipe: str, environment: Environment, defaults: dict[str, str]) -> dict[str, Any]:
    """Return the compiled pipeline with these and the environment's `defaults` of its parameters."""
    from google.protobuf import json_format

    spec = json_format.MessageToDict(pipeline.pipeline_spec)
    every = {**defaults, "beam_options": environment.beam_options, **metadata_for(recipe, environment).parameters()}
    for name, value in every.items():
        spec["root"]["inputDefinitions"]["parameters"][name] |= {"defaultValue": value, "isOptional": True}
    return spec


def _fill_in_time(spec: dict[str, Any], day: str) -> None:
    """Give the tasks of the top level, as `scheduled`, the `day`, or without one the time of the run's schedule.

    The pipelines themselves do not name the placeholder: kfp.local 2.17 stops at it.
    """
    from kfp import dsl

    del spec["root"]["inputDefinitions"]["parameters"]["scheduled"]
    for task in spec["root"]["dag"]["tasks"].values():
        for value in task["inputs"]["parameters"].values():
            if value == {"componentInputParameter": "scheduled"}:
                value.clear()
                value["runtimeValue"] = {"constant": day or dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER}


def to_yaml(documents: Iterable[dict[str, Any]]) -> str:
    """Return the documents as YAML in a fixed order of keys, texts of several lines as blocks."""
    return yaml.dump_all(documents, Dumper=_BlockDumper, sort_keys=True, allow_unicode=True, width=120)


def with_code(recipe: Recipe, environment: Environment) -> tuple[Recipe, dict[str, Upload]]:
    """Return `recipe` with the wheels of its packages, and their uploads and that of its archive of code, not sent yet.

    Raises as `python_packages.chosen`.
    """
    recipe = python_packages.chosen(recipe, environment)
    if not takes_uploads(environment):
        return recipe, {}
    found: dict[str, Upload] = {}

    def placed(path: str, key: str) -> str:
        uri, upload = uploads.stored_uri(path, environment.storage, f"{recipe.name}: {key}")
        found.update({key: upload} if upload else {})
        return uri

    changes: dict[str, Any] = {}
    if wheels := packages.wheels(recipe):
        places = {name: placed(wheel.location, f"packages.{name}") for name, wheel in wheels.items()}
        sent = {name: wheel.model_copy(update={"location": places[name]}) for name, wheel in wheels.items()}
        changes["packages"] = {**packages.chosen(recipe), **sent}
    if isinstance(recipe.files, Archive):
        changes["files"] = recipe.files.model_copy(update={"archive": placed(recipe.files.archive, "files")})
    return recipe.model_copy(update=changes), found


def _check_portable(recipe: Recipe, environment: Environment) -> None:
    if not isinstance(recipe.files, Archive):  # which may not be uploaded yet
        code.files(recipe)  # raises if they were not read
    wheels = packages.wheels(recipe)  # raises if they were not chosen
    if environment.target == "local":
        return
    faults = []
    if local := [name for name, wheel in wheels.items() if not reachable(wheel.location, environment)]:
        faults.append(
            f"packages: {local[0]} is on this machine, and `compile` sends nothing. Start the run, or use an image "
            "that has the packages."
        )
    if recipe.data.path and not reachable(recipe.data.path, environment):
        faults.append(f"data.path: '{recipe.data.path}' is on this machine. {_upload(environment)}")
    weights = recipe.model.weights
    if weights and weights != IMAGENET and not reachable(weights, environment):
        faults.append(f"model.weights: '{weights}' is on this machine. {_upload(environment)}")
    teacher = recipe.train.teacher
    if teacher and not reachable(teacher.model, environment):
        faults.append(f"train.teacher: '{teacher.model}' is on this machine. {_upload(environment)}")
    if isinstance(recipe.files, Archive) and not reachable(recipe.files.archive, environment):
        faults.append(
            "files: code of more than 64 KiB is an archive on this machine, which is uploaded if a run starts. Make it "
            "smaller, or put the larger files into the image."
        )
    if recipe.push.path and not reachable(recipe.push.path, environment):
        faults.append(f"push.path: '{recipe.push.path}' is on this machine. Name a bucket's URI, or leave it out.")
    if faults:
        reason = f"{environment.name}: the steps of target {environment.target} run elsewhere"
        raise ConfigurationError(*(f"{recipe.name}: {fault} ({reason})" for fault in faults))


def _upload(environment: Environment) -> str:
    """Return the advice for a path that only this machine has."""
    if takes_uploads(environment):
        return "Upload it by `trainyard data upload PATH -e ENVIRONMENT`, and name the URI that this prints."
    return "Copy it to a bucket, or to the environment's volume, and name its place there."


def takes_uploads(environment: Environment) -> bool:
    """Return True if local files can be uploaded to the storage: a bucket, or a volume of the cluster."""
    on_volume = environment.target == "kubeflow" and reachable(environment.storage, environment)
    return is_bucket(environment.storage) or on_volume


def reachable(path: str, environment: Environment) -> bool:
    """Return True if all steps can read `path`: it is in a bucket or on a volume that they mount."""
    volume = environment.volume
    return "://" in path or (volume is not None and f"{path}/".startswith(f"{volume.path.rstrip('/')}/"))


def _check_gang(recipe: Recipe, environment: Environment) -> None:
    check_input_workers(recipe, environment.input_count)
    check_one_cpu(recipe, environment)
    plan = gang_spec(environment)
    for attempt in plan.attempts if plan else []:
        _check_workers(recipe, environment, attempt)


def _check_workers(recipe: Recipe, environment: Environment, plan: GangSpec) -> None:
    """Raise `ConfigurationError` if the gang of `plan`, on one pool, cannot divide the batches of `recipe`."""
    pods = f"{environment.name} trains in {plan.workers} pod{'s' if plan.workers > 1 else ''}"
    pods += f" on {plan.name}" if plan.name else ""
    if recipe.train.workers not in (1, plan.workers):
        raise ConfigurationError(
            f"{recipe.name}: train.workers: {recipe.train.workers} processes were asked for, and {pods}. "
            "Leave train.workers out: the pool says how many workers train."
        )
    if why := unequal_parts(recipe, plan.pool):
        raise ConfigurationError(f"{recipe.name}: {why} ({pods}).")


class _BlockDumper(yaml.SafeDumper):
    """Writes multi-line texts (recipes, code) as blocks, so that a person can read them and a diff shows lines."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_BlockDumper.add_representer(str, _text)


@dataclass(frozen=True)
class Submission:
    """A run to create: the package, the names of pipeline, version and run, the environment and the metadata.

    uploads: what has to be in the storage before it starts, by recipe key.
    files: the size in bytes of each file of code that travels with the recipe, by name.
    """

    pipeline: str
    version: str
    package: str
    run: str
    environment: Environment
    metadata: RunMetadata
    uploads: dict[str, Upload] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)


def submission(
    recipe: str, environment: Environment, placed: PlacedSpec, run: str, *, schedule: str = "", trains_on: str = ""
) -> Submission:
    """Return the submission of a placed pipeline as the run `run`. Raises `ConfigurationError` for a bad name.

    recipe: what it runs, by name. schedule, trains_on: as in `RunMetadata`.
    """
    if not _RUN_NAME.match(run):
        raise ConfigurationError(
            f"--name {run}: is not a name. "
            "Use at most 63 lower-case letters, digits and '-', a letter or digit at both ends."
        )
    package = to_yaml(placed.documents)
    digest = hashlib.sha256(package.encode()).hexdigest()[:_DIGEST]
    metadata = replace(metadata_for(recipe, environment), schedule=schedule, trains_on=trains_on)
    return Submission(f"trainyard-{recipe}", f"{metadata.environment}-{digest}", package, run, environment, metadata)


def request(submission: Submission, experiment: str, pipeline: str, version: str) -> Any:
    """Return the body of Kubeflow's CreateRun; `experiment`, `pipeline` and `version` are the server's ids.

    The plan's forecast is a parameter of the run: in the package, each new record would make a new version.
    """
    import kfp_server_api as kfp

    expected = submission.metadata.expected
    return kfp.V2beta1Run(
        display_name=submission.run,
        description=f"{submission.pipeline} {submission.version}"
        + (f"; the plan expects {expected}" if expected else ""),
        experiment_id=experiment,
        pipeline_version_reference=kfp.V2beta1PipelineVersionReference(
            pipeline_id=pipeline, pipeline_version_id=version
        ),
        runtime_config=kfp.V2beta1RuntimeConfig(parameters=submission.metadata.parameters()),
        service_account=submission.environment.service_accounts.run or None,
    )


@dataclass(frozen=True)
class RunMetadata:
    """The names of recipe, environment and schedule, '' without one, and what the plan expects of the training.

    trains_on: the pool of train if a benchmark chose it, and not the environment. uploads: the paths on the submitting
    machine of what it uploaded, by recipe key.
    """

    recipe: str
    environment: str
    expected: Expectation | None = None
    schedule: str = ""
    trains_on: str = ""
    uploads: dict[str, str] = field(default_factory=dict)

    def parameters(self) -> dict[str, str]:
        """Return the pipeline parameter that `metadata_from_run` reads."""
        return {_METADATA_PARAMETER: json.dumps({name: value for name, value in asdict(self).items() if value})}


UNKNOWN_METADATA = RunMetadata("–", "–")
"""The metadata of a run that another tool created."""


def metadata_for(recipe: str, environment: Environment) -> RunMetadata:
    """Return the metadata of a run of `recipe` in `environment`; names are shortened for labels and versions."""
    slug = re.sub(r"[^a-z0-9]+", "-", Path(environment.name).stem.lower()).strip("-")
    return RunMetadata(recipe, slug[:_LONGEST])


def metadata_from_run(run: Any) -> RunMetadata:
    """Return the metadata of Kubeflow's `run` or recurring run."""
    return _read_metadata(run.runtime_config.parameters if run.runtime_config else None)


def _read_metadata(parameters: dict[str, Any] | None) -> RunMetadata:
    """Return the metadata in the parameters of a run, otherwise `UNKNOWN_METADATA`."""
    try:
        fields = json.loads((parameters or {})[_METADATA_PARAMETER])
        if expected := fields.pop("expected", None):
            fields["expected"] = Expectation(expected["pool"], Estimate(**expected["speed"]), expected.get("cost_usd"))
        return RunMetadata(**fields)
    except (KeyError, TypeError, ValueError, AttributeError):
        return UNKNOWN_METADATA


def gang_objects(package: str) -> list[Manifest]:
    """Return the objects that the launchers of `package` will create; only a run's own values are in angle brackets.

    On a list of pools, those of each pool in the order in which the launcher tries them.
    The names of the objects contain the run's id and the output's key, so they are other ones in a run.
    """
    from trainyard.steps.train.gang.pods import job  # with Kubernetes' client, half a second
    from trainyard.steps.train.gang.pods.pods import planned_gangs

    spec = next(iter(yaml.safe_load_all(package)))
    parameters, executors = spec["root"]["inputDefinitions"]["parameters"], spec["deploymentSpec"]["executors"]
    known = {name: str(parameter.get("defaultValue", "")) for name, parameter in parameters.items()}
    recipe = documents.parse(known["recipe"], Recipe, name="recipe") if "recipe" in known else None
    variables = [entry for one in executors.values() for entry in one.get("container", {}).get("env", [])]
    plans = [known.get(GANG, ""), *(str(entry["value"]) for entry in variables if entry["name"] == VARIABLE)]
    options = {plan: _options(plan, recipe, known) for plan in plans if plan}
    gangs = [gang for plan in options for gang in planned_gangs(recipe, plan, "<run>", options[plan])]
    workflow = job.owner_reference("argoproj.io/v1alpha1", "Workflow", "<workflow>", "<workflow uid>")
    return [made for gang in gangs for made in job.gang_objects(gang, workflow, "<job uid>", "<input job uid>")]


def _options(plan: str, recipe: Recipe | None, known: dict[str, str]) -> dict[str, str]:
    """Return the options of the program in the pods of the gang `plan`. known: the pipeline's parameters."""
    from trainyard.steps.train.gang.pods.pods import step_options, training_options

    step, code = documents.parse(plan, GangSpec, name=GANG).step, known["code"]
    if recipe is None:
        arguments = {name: known[name] for name in ("model", "inputs", "key", "beam_options")}
        return step_options(code, known["predictions"], arguments)
    outputs = {name: f"{keys.outputs_folder(known['storage'], recipe, name)}/<key>" for name in STEPS}
    model = keys.labeled(outputs["train"], known.get("label", ""))
    if step == "train":
        start = "<champion>" if recipe.train.warm_start else ""
        return training_options(code, outputs["preprocess"], keys.checkpoints(model), model, start)
    arguments = {STEPS[name].argument: outputs[name] for name in STEPS[step].reads}
    return step_options(code, outputs[step], arguments | {name: f"<{name}>" for name in STEPS[step].inputs})
