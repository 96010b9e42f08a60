"""Creates and sends jobs of Vertex AI Pipelines. Not yet tested with an account."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainyard.errors import ConfigurationError, InfrastructureError, TrainyardError, TransientError
from trainyard.spec.environment import Environment, Vertex
from trainyard.storage import cache, storage
from trainyard_control.compiler.compilation import Submission


def job(submission: Submission, credentials: Any = None) -> Any:
    """Return the PipelineJob to send. Its id is the name of the run, which is unique in Vertex AI."""
    try:
        from google.cloud import aiplatform
    except ImportError as error:
        raise ConfigurationError(
            "vertex: the package google-cloud-aiplatform is missing. Install trainyard[vertex]."
        ) from error

    settings = settings_of(submission.environment)
    with cache.temporary_folder() as folder:
        file = folder / "pipeline.yaml"
        file.write_text(submission.package, encoding="utf-8")
        return aiplatform.PipelineJob(
            display_name=submission.run,
            job_id=submission.run,
            template_path=str(file),
            pipeline_root=storage.join(submission.environment.storage, "pipeline-root"),
            labels={"pipeline": submission.pipeline, "version": submission.version},
            project=settings.project,
            location=settings.location,
            credentials=credentials,
        )


def send(submission: Submission) -> tuple[str, bool]:
    """Return the job's resource name, and True if a job of that name already existed."""
    from google.api_core import exceptions

    settings = settings_of(submission.environment)
    with client_errors(ConfigurationError):
        try:
            made = job(submission)
            made.submit(service_account=settings.service_account or None)
        except exceptions.AlreadyExists:
            return f"projects/{settings.project}/locations/{settings.location}/pipelineJobs/{submission.run}", True
    return str(made.resource_name), False


@contextmanager
def client_errors(refused: type[TrainyardError]) -> Iterator[None]:
    """Raise errors of Google's clients as those of Trainyard. refused: of a request that Vertex AI does not accept."""
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except (exceptions.Unauthenticated, exceptions.Forbidden, GoogleAuthError) as error:
        raise InfrastructureError(
            f"vertex: refused ({error}). Log in by `gcloud auth application-default login`, or have the role "
            "Vertex AI User granted."
        ) from error
    except exceptions.ClientError as error:
        raise refused(f"vertex: refused ({error}).") from error
    except exceptions.GoogleAPIError as error:
        raise TransientError(f"vertex: cannot be reached ({error}). Run the same command again.") from error


def settings_of(environment: Environment) -> Vertex:
    """Return the project and region. Raises `ConfigurationError` if the environment names none."""
    if environment.vertex is None:
        raise ConfigurationError(f"{environment.name}: vertex: is required. Name the project and the location.")
    return environment.vertex
