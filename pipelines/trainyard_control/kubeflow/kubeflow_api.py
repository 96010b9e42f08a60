"""The calls to the API of Kubeflow Pipelines, in its published types, and the submission of a run exactly once.

Kubeflow accepts any number of runs with one name, and a client's own id is no lock: server 2.17 starts the second
workflow before its database refuses the second run. So names are looked up before anything is created, and once more
afterwards, and clients that create a run at the same moment agree on which one stays.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import Any
from urllib.parse import urljoin

from trainyard.errors import ConfigurationError, InfrastructureError, TransientError
from trainyard.kubernetes import client
from trainyard.kubernetes.client import CALL_SECONDS, message, patient, reason
from trainyard.spec.environment import Environment
from trainyard.storage import cache
from trainyard.storage.buckets.objects import untrusted
from trainyard_control.cluster.environments import bundle_file
from trainyard_control.cluster.login import Login, refusal
from trainyard_control.compiler.compilation import Submission, request

SERVICE = "ml-pipeline"
_PORT = 8888
_PAGE = 100
_UPLOAD_SECONDS = 60  # chosen: the server compiles the package before it answers
# Source: Kubeflow Pipelines 2.17.0, backend/src/apiserver/resource/resource_manager.go (IsAuthorized).
_NOT_AUTHORIZED = re.compile(
    r"User '(?P<user>[^']+)' is not authorized .*Namespace:(?P<namespace>[^,]*),Verb:(?P<verb>\w+),"
    r".*Resource:(?P<resource>\w+)"
)
_OVER = frozenset({"FAILED", "CANCELED", "CANCELING"})
_SETTLE_SECONDS = 15.0  # chosen: longer than another client takes from creating its run to looking for others
_POLL_SECONDS = 0.5


class KubeflowServer:
    """The Kubeflow Pipelines server of an environment.

    Raises `TransientError` if it is busy or unreachable, `InfrastructureError` if it refuses the caller, and
    `ConfigurationError` if it refuses the request.
    """

    def __init__(self, environment: Environment) -> None:
        import kfp_server_api

        self._kfp = kfp_server_api
        self._environment = environment
        self.configuration = _configuration(environment)
        api = kfp_server_api.ApiClient(self.configuration)
        self.login = Login(environment.kubeflow)
        if self.login.applies:
            self.login.attach(api, environment.namespace)
        self._api = api
        self._health = kfp_server_api.HealthzServiceApi(api)
        self._pipelines = kfp_server_api.PipelineServiceApi(api)
        self._upload = kfp_server_api.PipelineUploadServiceApi(api)
        self._experiments = kfp_server_api.ExperimentServiceApi(api)
        self._runs = kfp_server_api.RunServiceApi(api)
        self._recurring = kfp_server_api.RecurringRunServiceApi(api)

    @property
    def host(self) -> str:
        """The API's address."""
        return str(self.configuration.host)

    def version(self) -> str:
        """Return the server's version, which also shows that the server answers."""
        return str(self._healthz().get("tag_name") or "unknown")

    def multi_user(self) -> bool:
        """Return True for a multi-user installation, with a namespace per user."""
        return bool(self._healthz().get("multi_user"))

    def workgroup(self) -> dict[str, Any]:
        """Return `user` and `namespaces` with their roles, as Kubeflow's dashboard knows them; empty without one.

        Source: components/centraldashboard/app/api_workgroup.ts (env-info) of https://github.com/kubeflow/dashboard.
        """
        from urllib3.exceptions import HTTPError

        if not (endpoint := self._environment.kubeflow.endpoint):
            return {}
        url = f"{urljoin(endpoint, '/')}api/workgroup/env-info"
        try:
            answer = self._api.request("GET", url, headers={}, _preload_content=False, _request_timeout=CALL_SECONDS)
            found = json.loads(answer.data)
        except (self._kfp.ApiException, HTTPError, OSError, ValueError, InfrastructureError):
            return {}
        return found if isinstance(found, dict) else {}

    def experiment(self) -> str:
        """Return the id of the environment's experiment, creating it if needed."""
        name = self._environment.kubeflow.experiment

        def make() -> str:
            body = self._kfp.V2beta1Experiment(display_name=name, namespace=self._multi_user_namespace or None)
            call = self._experiments.experiment_service_create_experiment
            return str(self._write(call, experiment=body).experiment_id)

        return self._ensured(self.find_experiment, make)

    def find_experiment(self) -> str | None:
        """Return the id of the environment's experiment, None if there is none."""
        call = self._experiments.experiment_service_list_experiments
        return self._find(call, "experiments", "experiment_id", self._environment.kubeflow.experiment)

    def upload(self, pipeline: str, version: str, package: str) -> tuple[str, str]:
        """Upload `package` as the version `version` of the pipeline, and return both ids.

        An existing version of that name is reused, because names contain the digest of the content.
        """
        owner = self._pipeline(pipeline)
        versions = self._pipelines.pipeline_service_list_pipeline_versions

        def make() -> str:
            with cache.temporary_folder() as folder:
                file = folder / "pipeline.yaml"
                file.write_text(package, encoding="utf-8")
                names = {"name": version, "display_name": version, "pipelineid": owner}
                call = self._upload.upload_pipeline_version
                return str(self._write(call, _UPLOAD_SECONDS, uploadfile=str(file), **names).pipeline_version_id)

        def find() -> str | None:
            return self._find(versions, "pipeline_versions", "pipeline_version_id", version, pipeline_id=owner)

        return owner, self._ensured(find, make)

    def create_run(self, run: Any) -> Any:
        """Create a run. It is not repeated if the answer is lost."""
        return self._write(self._runs.run_service_create_run, run=run)

    def try_to_run(self, experiment: str) -> None:
        """Raise `InfrastructureError` if the caller may not create runs in the experiment. Nothing is created."""
        missing = self._kfp.V2beta1PipelineVersionReference(pipeline_id="none", pipeline_version_id="none")
        run = self._kfp.V2beta1Run(display_name="doctor", experiment_id=experiment, pipeline_version_reference=missing)
        with suppress(ConfigurationError, TransientError):  # rights come before the version, which does not exist
            self.create_run(run)

    def run(self, run_id: str) -> Any:
        """Return the run with its tasks. Raises `ConfigurationError` if there is none."""
        return self._read(self._runs.run_service_get_run, run_id=run_id)

    def find_runs(self, name: str) -> list[Any]:
        """Return the runs called `name`, the newest first."""
        return list(self._pages(self._runs.run_service_list_runs, "runs", ("display_name", name)))

    def runs(self, experiment: str | None = None) -> Iterator[Any]:
        """Yield the runs of one experiment or of all, the newest first."""
        call = self._runs.run_service_list_runs
        yield from self._pages(call, "runs", experiment_id=experiment) if experiment else self._pages(call, "runs")

    def terminate(self, run_id: str) -> None:
        """Ask for the end of the run."""
        self._write(self._runs.run_service_terminate_run, run_id=run_id)

    def delete(self, run_id: str) -> None:
        """Delete the run, its workflow and all of its pods."""
        self._write(self._runs.run_service_delete_run, run_id=run_id)

    def recurring_runs(self, experiment: str) -> list[Any]:
        """Return the recurring runs of the experiment."""
        call = self._recurring.recurring_run_service_list_recurring_runs
        return list(self._pages(call, "recurring_runs", experiment_id=experiment))

    def scheduled_packages(self) -> Iterator[str]:
        """Yield the pipelines of the recurring runs in the namespace, as JSON."""
        version = self._pipelines.pipeline_service_get_pipeline_version
        for run in self._pages(self._recurring.recurring_run_service_list_recurring_runs, "recurring_runs"):
            if reference := run.pipeline_version_reference:
                ids = {"pipeline_id": reference.pipeline_id, "pipeline_version_id": reference.pipeline_version_id}
                with suppress(ConfigurationError):  # it is deleted, so the schedule starts nothing
                    yield json.dumps(self._read(version, **ids).pipeline_spec)

    def runs_made_by(self, recurring_run: str) -> list[Any]:
        """Return the newest runs of a recurring run."""
        pages = self._pages(self._runs.run_service_list_runs, "runs", ("recurring_run_id", recurring_run))
        return list(islice(pages, _PAGE))

    def create_recurring(self, recurring_run: Any) -> Any:
        """Create a recurring run."""
        call = self._recurring.recurring_run_service_create_recurring_run
        return self._write(call, recurring_run=recurring_run)

    def disable_recurring(self, recurring_run: str) -> None:
        """Disable a recurring run, so that it starts no more runs."""
        call = self._recurring.recurring_run_service_disable_recurring_run
        self._write(call, recurring_run_id=recurring_run)

    def delete_recurring(self, recurring_run: str) -> None:
        """Delete a recurring run, which ends its active run too."""
        call = self._recurring.recurring_run_service_delete_recurring_run
        self._write(call, recurring_run_id=recurring_run)

    @cached_property
    def _multi_user_namespace(self) -> str:
        """The namespace for lists: multi-user installations require one, others refuse it."""
        return self._environment.namespace if self.multi_user() else ""

    def _pipeline(self, name: str) -> str:
        """Return the id of the pipeline `name`, creating it if needed."""
        call = self._pipelines.pipeline_service_list_pipelines

        def make() -> str:
            body = self._kfp.V2beta1Pipeline(name=name, display_name=name, namespace=self._multi_user_namespace or None)
            return str(self._write(self._pipelines.pipeline_service_create_pipeline, pipeline=body).pipeline_id)

        return self._ensured(lambda: self._find(call, "pipelines", "pipeline_id", name), make)

    def _ensured(self, find: Callable[[], str | None], make: Callable[[], str]) -> str:
        """Return the result of `find`, otherwise create it, otherwise find what another process created meanwhile."""
        if (existing := find()) is not None:
            return existing
        try:
            return make()
        except ConfigurationError:
            if (existing := find()) is None:
                raise
            return existing

    def _healthz(self) -> dict[str, Any]:
        """Return the server's health document; no published type has its version."""
        answer = self._read(self._health.healthz_service_get_healthz, _preload_content=False)
        return dict(json.loads(answer.data))

    def _find(self, call: Callable[..., Any], field: str, key: str, name: str, **query: str) -> str | None:
        """Return the `key` of the newest entry of `field` called `name`, None if there is none."""
        entries = self._pages(call, field, ("display_name", name), **query)
        return next((str(getattr(entry, key)) for entry in entries), None)

    def _pages(
        self, call: Callable[..., Any], field: str, equal: tuple[str, str] | None = None, **query: str
    ) -> Iterator[Any]:
        """Yield the entries of `field`, the newest first; equal: only those with this value of this key."""
        if "pipeline_id" not in query and "experiment_id" not in query and self._multi_user_namespace:
            query["namespace"] = self._multi_user_namespace
        if equal:
            operation = self._kfp.V2beta1PredicateOperation.EQUALS
            predicate = self._kfp.V2beta1Predicate(operation=operation, key=equal[0], string_value=equal[1])
            body = self._api.sanitize_for_serialization(self._kfp.V2beta1Filter(predicates=[predicate]))
            query["filter"] = json.dumps(body)
        token = ""
        while True:
            page = self._read(call, page_size=_PAGE, page_token=token, sort_by="created_at desc", **query)
            yield from getattr(page, field) or []
            token = page.next_page_token or ""
            if not token:
                return

    def _read(self, call: Callable[..., Any], **arguments: Any) -> Any:
        return self._call(call, CALL_SECONDS, client.PATIENCE_SECONDS, arguments)

    def _write(self, call: Callable[..., Any], seconds: int = CALL_SECONDS, **arguments: Any) -> Any:
        return self._call(call, seconds, 0, arguments)

    def _call(self, call: Callable[..., Any], seconds: int, patience: float, arguments: dict[str, Any]) -> Any:
        from urllib3.exceptions import HTTPError

        refused = self._kfp.ApiException
        try:
            return patient(lambda: call(_request_timeout=seconds, **arguments), patience)
        except refused as error:
            raise self._refused(call.__name__, error) from error
        except (HTTPError, OSError) as error:
            if untrusted(why := reason(error)):
                raise InfrastructureError(
                    f"kubeflow: the certificate of {self.host} is not trusted ({why}). Name the certificates of its "
                    "authority as ca_bundle in the environment, or a file of them in REQUESTS_CA_BUNDLE."
                ) from error
            raise TransientError(
                f"kubeflow: {self.host} cannot be reached ({reason(error)}). "
                "Check kubeflow.endpoint in the environment and the network, and run the same command again."
            ) from error

    def _refused(self, call: str, error: Any) -> Exception:
        text = refusal(error) if error.status in (401, 403, 404) else message(error)
        if error.status == 401 and not self.login.applies:
            return InfrastructureError(
                f"kubeflow: {self.host}: this Kubeflow is for many users, and the Kubernetes API server does not tell "
                "it who you are. Name the URL of its page as kubeflow.endpoint in the environment, and your login as "
                "kubeflow.token_command, token_file or cookie_file."
            )
        if error.status == 403 and (match := _NOT_AUTHORIZED.search(text)):
            return InfrastructureError(
                f"kubeflow: {self.host}: you are {match['user']}, and may not {match['verb']} {match['resource']} in "
                f"namespace '{match['namespace']}'. Name a namespace of yours in the environment, or have its owner "
                "add you as a contributor."
            )
        if error.status in (401, 403):
            return InfrastructureError(
                f"kubeflow: {self.host}: refused ({error.status}: {text}). Ask for the permission in namespace "
                f"'{self._environment.namespace}', or name another namespace or login in the environment."
            )
        if error.status == 404:
            return ConfigurationError(
                f"kubeflow: {self.host}: {text}. Check the name or id, kubeflow.endpoint and the namespace."
            )
        if error.status in (400, 409):
            return ConfigurationError(f"kubeflow: {call}: refused ({text}).")
        return TransientError(f"kubeflow: {self.host}: {error.status} ({text}). Run the same command again.")


def _configuration(environment: Environment) -> Any:
    """Return the API's address and credentials: configured, of this cluster, or through the Kubernetes API server."""
    import kfp_server_api

    settings = environment.kubeflow
    configuration = kfp_server_api.Configuration()
    if settings.endpoint:
        configuration.host = settings.endpoint.rstrip("/")
        if configuration.host.startswith("https://"):
            configuration.ssl_ca_cert = bundle_file(environment) or None
    elif os.environ.get("KUBERNETES_SERVICE_HOST"):
        configuration.host = f"http://{SERVICE}.{settings.namespace}:{_PORT}"
    else:
        from kubernetes import config

        client.configure(configuration, config)
        path = f"api/v1/namespaces/{settings.namespace}/services/{SERVICE}:{_PORT}/proxy"
        configuration.host = f"{configuration.host.rstrip('/')}/{path}"
    return configuration


def submit(submission: Submission, server: KubeflowServer) -> tuple[str, bool]:
    """Return the id of the run of this name, and True if it existed before: it is active or has succeeded.

    If a run of this name failed or was cancelled, a new one is created and reuses its finished steps. If an answer is
    lost, the run is looked up. Raises `ConfigurationError` if a run of this name has other content.
    """
    pipeline, version = server.upload(submission.pipeline, submission.version, submission.package)
    if going := _going(server, submission.run):
        return _attached(going[0], submission, version)
    made = _made(server, submission, pipeline, version)
    if _stays(server, made, submission.run):
        return str(made.run_id), False
    server.delete(str(made.run_id))
    if not (going := _going(server, submission.run)):
        raise TransientError(
            f"--name {submission.run}: another command withdrew its run too. Run the same command again."
        )
    return _attached(going[0], submission, version)


def _made(server: KubeflowServer, submission: Submission, pipeline: str, version: str) -> Any:
    body = request(submission, server.experiment(), pipeline, version)
    before = {run.run_id for run in server.find_runs(submission.run)}
    try:
        return server.create_run(body)
    except TransientError:
        arrived = next((run for run in server.find_runs(submission.run) if run.run_id not in before), None)
        if arrived is None:
            raise
        return arrived


def _stays(server: KubeflowServer, made: Any, name: str) -> bool:
    """Return True if `made` is the run that stays, if other clients created one at the same moment.

    The oldest stays: its client waits until the others are deleted. An older run that stays visible was looked for
    before `made` could be seen, so nobody will delete it, and `made` gives way.
    """
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        competing = [run for run in _going(server, name) if run.run_id != made.run_id]
        if not competing:
            return True
        if _age(competing[0]) < _age(made) or time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)


def _going(server: KubeflowServer, name: str) -> list[Any]:
    """Return the active and succeeded runs of this name, the oldest first."""
    return sorted((run for run in server.find_runs(name) if str(run.state) not in _OVER), key=_age)


def _age(run: Any) -> tuple[Any, str]:
    """Return the sort key of runs with one name; the server's times have a resolution of a second."""
    return run.created_at, str(run.run_id)


def _attached(run: Any, submission: Submission, version: str) -> tuple[str, bool]:
    reference = run.pipeline_version_reference
    if reference is None or reference.pipeline_version_id != version:
        raise ConfigurationError(
            f"--name {submission.run}: a run of that name exists ({run.run_id}, {run.state}) and is of another recipe, "
            "environment or code. Give this one another name."
        )
    return str(run.run_id), True
