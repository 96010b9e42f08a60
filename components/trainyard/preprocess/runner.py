"""Where the Beam pipelines run: in this process, or on the runner that the environment names."""

from __future__ import annotations

import errno
import logging
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from trainyard.core.errors import ConfigurationError

_OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)


@contextmanager
def pipeline(beam_options: str) -> Iterator[Any]:
    """Yield a pipeline that runs when the block ends, on the runner that `beam_options` names.

    beam_options are Beam's own command line options, such as `--runner=PrismRunner`. Without a runner, or with
    DirectRunner, it runs in this process. Raises `ConfigurationError` where there is no such runner, and `OSError`
    where a worker met a full disk or a missing permission.
    """
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    options = PipelineOptions(shlex.split(beam_options))
    options.view_as(SetupOptions).save_main_session = False
    # Beam's DirectRunner would first try to download and start the Prism binary.
    in_process = options.view_as(StandardOptions).runner in (None, "DirectRunner")
    try:
        root = beam.Pipeline(runner=FnApiRunner() if in_process else None, options=options)
    except ValueError as error:
        raise ConfigurationError(
            f"beam options '{beam_options}': {str(error).rstrip('.')}. Correct the runner in the environment."
        ) from error
    try:
        with root:
            yield root
    except RuntimeError as error:
        _raise_of_the_machine(error)
        raise


def _raise_of_the_machine(error: RuntimeError) -> None:
    """Raise `OSError` where a worker met one: Beam hands its errors on as text."""
    for number in _OF_THE_MACHINE:
        if os.strerror(number) in str(error):
            raise OSError(number, os.strerror(number)) from error
