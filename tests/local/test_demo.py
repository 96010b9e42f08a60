"""The scripts of the demo page in headless Chromium: the same features as preprocess.py."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Page, chromium, needs_chromium
from PIL import Image
from test_data_images import ON_DEVICE, SHAPE, TURNED, drawn

from trainyard.steps.export import demo
from trainyard.steps.export.on_device.images import image_input

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium() as page:
        yield page


def open_scripts(page: Page, content: dict[str, Any], folder: Path) -> None:
    text = json.dumps(content).replace("<", "\\u003c")
    script = demo.scripts("page", "images") + "\nglobalThis.features = features;"
    html = f'<meta charset="utf-8"><script type="application/json" id="page">{text}</script>'
    (folder / "page.html").write_text(f'{html}<script type="module">{script}</script>', encoding="utf-8")
    page.open(folder / "page.html")


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_file_becomes_nearly_the_pixels_that_preprocess_py_makes(
    page: Page, tmp_path: Path, channels: int
) -> None:
    content = {"image": SHAPE.model_dump() | {"channels": channels}, "inputs": [{"feature": "image"}]}
    open_scripts(page, {"preprocessing": content}, tmp_path)
    images = {name: encoded for name, encoded in ON_DEVICE.items() if "16 bits" not in name}
    images |= {"JPEG, turned": TURNED, "a photo": photo(), "BMP": drawn("RGB", "BMP"), "GIF": drawn("P", "GIF")}
    images["WebP"] = drawn("RGB", "WEBP", lossless=True)
    furthest, typical = {}, {}
    for name, encoded in images.items():
        script = f"fetch('data:;base64,{base64.b64encode(encoded).decode()}').then((answer) => answer.blob())"
        script += ".then(features).then(({ image }) => [...image])"
        made = np.array(page.run(script)).reshape(SHAPE.height, SHAPE.width, channels)
        difference = np.abs(made - image_input(encoded, content["image"]))
        furthest[name], typical[name] = difference.max(), difference.mean()
    for name, value in furthest.items():
        print(channels, name, f"{value:.3g}", f"{typical[name]:.3g}")
    for name, value in furthest.items():
        if "JPEG" in name or name == "a photo":
            assert value <= (4 if channels == 3 else 10) and typical[name] <= 3, name
        else:
            is_transparent = name in ("PNG, RGBA", "PNG, palette")
            assert value <= (1 if is_transparent and channels == 1 else 1e-4), name


def photo() -> bytes:
    """A large image of smooth shapes, as a camera takes."""
    y, x = np.mgrid[:480, :640]
    waves = [np.sin(x / 30 + 2 * channel) * np.cos(y / 40) + np.sin(x * y / 9000) for channel in range(3)]
    pixels = np.clip(127 + 60 * np.stack(waves, axis=-1), 0, 255).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("encoded", "sentence"),
    [
        (ON_DEVICE["PNG, 16 bits"], "the image has 16 bits a channel, which browsers cut. Save it with 8 bits."),
        (drawn("CMYK", "JPEG"), "the image is in CMYK colors. Save it as RGB."),
        (drawn("RGB", "TIFF"), "the file is no JPEG, PNG, WebP, GIF or BMP image. Save it as JPEG or PNG."),
        (b"", "the file is no JPEG, PNG, WebP, GIF or BMP image. Save it as JPEG or PNG."),
        (ON_DEVICE["PNG, RGB"][:60], "the browser cannot read this image. Save it as JPEG or PNG again."),
    ],
    ids=["16 bits", "CMYK", "TIFF", "empty", "cut"],
)
def test_what_a_browser_would_decode_otherwise_is_refused(
    page: Page, tmp_path: Path, encoded: bytes, sentence: str
) -> None:
    content = {"image": SHAPE.model_dump(), "inputs": [{"feature": "image"}]}
    open_scripts(page, {"preprocessing": content}, tmp_path)
    bytes_ = json.dumps([*encoded])
    script = f"features(new Blob([new Uint8Array({bytes_})])).then(() => '', (error) => error.message)"
    assert page.run(script) == sentence


def test_the_key_of_an_export_changes_with_what_its_page_is_made_of() -> None:
    assert hashlib.sha256(b"".join(path.read_bytes() for path in demo.sources())).hexdigest() == demo.SOURCES_DIGEST
