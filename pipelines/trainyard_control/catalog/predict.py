"""Batch prediction on a pool: `kfp dsl compile --py` takes this file as it is."""

from kfp import dsl

from trainyard.graph import PREDICT
from trainyard_control.catalog.steps import add


@dsl.pipeline(name="trainyard-predict")
def predict_pipeline(
    model: str,
    inputs: str,
    predictions: str,
    key: str = "",
    code: str = "",
    beam_options: str = "",
    storage: str = "",
    about: str = "",  # noqa: ARG001
) -> None:
    """Write the answers of a pushed model to every image or row into a folder.

    Args:
        model: URI of a pushed version, or of a folder of versions: then of its champion.
        inputs: URI of a folder of images, or of CSV, Parquet or TFRecord files, or a glob of them.
        predictions: URI of the folder to write.
        key: Column that names each row. Empty: its file and number do.
        code: Digest of the code this was compiled with; an image with other code refuses. Empty: not checked.
        beam_options: Command line of Beam, whose workers share the files.
        storage: Root URI of the records of runs. Empty: attempts on a list of pools are not noted.
        about: JSON text of what the run is for, read by `trainyard runs` and no step.
    """
    known = {"model": model, "inputs": inputs, "predictions": predictions, "key": key, "code": code}
    # Not cached: the files may have changed; finished parts are reused.
    add([PREDICT], known | {"beam_options": beam_options, "storage": storage})
