"""Makes the record of one encoded image, whatever held it: a file, or an example of a TFRecord file."""

from __future__ import annotations

import math

from trainyard.quality.images.decoding import PixelForm
from trainyard.spec.recipe import Data
from trainyard.steps.preprocess.readers.files import image_limit, too_many_bytes
from trainyard.steps.preprocess.readers.images.check import ImageLimits, check_image
from trainyard.steps.preprocess.readers.images.store import Store
from trainyard.steps.preprocess.readers.records import Record, content_digest


def image_limits(data: Data) -> ImageLimits:
    """Return the limits of all images of `data`."""
    form, store = PixelForm(data.channels, data.white_level), Store(data.stored, data.image_size)
    return ImageLimits(data.max_image_pixels, form, store)


def image_record(encoded: bytes, label: str, source: str, limits: ImageLimits, split_by: str = "") -> Record:
    """Return the record of one image, as `check_image` judges it and `data.store` keeps it. Raises `BadRecord`.

    content and measures are those of the image as it came; raw holds what is stored of it.
    """
    if len(encoded) > image_limit(limits.max_pixels):
        raise too_many_bytes(len(encoded), image_limit(limits.max_pixels))
    image = check_image(encoded, limits)
    measures = {
        "height": float(image.height),
        "width": float(image.width),
        "bytes": float(len(encoded)),
        "constant": float(image.constant),
        "level": math.nan if image.level is None else float(image.level),
    }
    return Record(source, label, {"image": image.encoded}, content_digest({"image": encoded}), measures, split_by)
