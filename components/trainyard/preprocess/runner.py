"""Where the Beam pipelines run: in this process, or on the runner that the environment names."""

from __future__ import annotations

import logging
import shlex
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from trainyard.core.errors import ConfigurationError


def pipeline(beam_options: str) -> Any:
    """Return a pipeline, run when its block ends, on the runner that `beam_options` names.

    beam_options are Beam's own command line options, such as `--runner=PrismRunner`. Without a runner, or with
    DirectRunner, it runs in this process. Raises `ConfigurationError` where there is no such runner.
    """
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    options = PipelineOptions(shlex.split(beam_options))
    options.view_as(SetupOptions).save_main_session = False
    # Beam's DirectRunner would first try to download and start the Prism binary.
    in_process = options.view_as(StandardOptions).runner in (None, "DirectRunner")
    try:
        return beam.Pipeline(runner=FnApiRunner() if in_process else None, options=options)
    except ValueError as error:
        raise ConfigurationError(
            f"beam options '{beam_options}': {error}. Name a runner such as DirectRunner, PrismRunner, FlinkRunner or "
            "DataflowRunner in the environment."
        ) from error
