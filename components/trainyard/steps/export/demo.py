"""demo.html: one page that runs the ONNX file of an image model in a browser, without a server and without requests.

Its scripts do what preprocess.py does.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import re
import struct
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from trainyard.contract.artifacts.preprocess import Examples, ImageShape
from trainyard.contract.version import PREPROCESSING
from trainyard.errors import ConfigurationError
from trainyard.report import pages
from trainyard.spec.recipe import Recipe
from trainyard.steps.export import skew
from trainyard.steps.export.on_device import predict

FILE = "demo.html"
VERSION = "1.30.0"
"""Of onnxruntime-web, whose files `make demo-runtime` puts into `RUNTIME`."""

_FOLDER = Path(__file__).parent / "browser"
RUNTIME = _FOLDER / "runtime"
DIGESTS = {
    "ort.wasm.bundle.min.mjs": "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
"""SHA-256 of the runtime's files; they lie in `RUNTIME` compressed."""

SOURCES_DIGEST = "d05de02896f7c2f834a6ee42da87473c2c1876b75aee8de1887f7049e07c1322"
"""SHA-256 of the template and the scripts, so that the keys of exports change with them; a test holds it."""

_MODEL = "model.onnx"
_DRAWING = 280  # pixels of the longer side; chosen


def write(recipe: Recipe, document: Examples, folder: Path) -> None:
    """Write demo.html of the exported files in `folder`. Call after `calling.write`.

    Raises `ConfigurationError` if the recipe has its own transform, or the runtime is not installed.
    """
    image = document.image
    if image is None or not (folder / "preprocess.py").exists():
        raise ConfigurationError(
            "export.demo: the page takes an image, and the recipe's preprocessing_fn is TensorFlow code, which no "
            "browser runs. Leave demo out."
        )
    library, wasm = runtime_files()
    library_script = _as_global(gzip.decompress(library).decode())
    script = scripts("page", "images", "images_form", "demo")
    content = json.loads((folder / PREPROCESSING).read_text(encoding="utf-8"))
    example = _test_image(image)
    page = {
        "preprocessing": content,
        "labels": document.labels,
        "check": {"example": base64.b64encode(example).decode(), "answer": _answer(folder, example)},
    }
    text = pages.template(_FOLDER / "demo.html.j2").render(
        labels=document.labels,
        separator=recipe.data.label_separator,
        targets=document.targets or [document.label],
        thresholds=content["thresholds"],
        image=image,
        drawing=_drawing_size(image),
        version=VERSION,
        library=library_script,
        script=script,
        script_hashes=[*map(pages.script_hash, (library_script, script)), "wasm-unsafe-eval"],
        runtime=base64.b64encode(wasm).decode(),
        model=base64.b64encode(gzip.compress((folder / _MODEL).read_bytes(), mtime=0)).decode(),
        page=page,
    )
    (folder / FILE).write_text(text, encoding="utf-8")


def runtime_files() -> list[bytes]:
    """Return the runtime's files, gzipped. Raises `ConfigurationError` if one is missing, or is another one."""
    return [_runtime_file(name) for name in DIGESTS]


def _runtime_file(name: str) -> bytes:
    path = RUNTIME / f"{name}.gz"
    try:
        content = path.read_bytes()
        digest = hashlib.sha256(gzip.decompress(content)).hexdigest()
    except (OSError, EOFError) as error:
        raise ConfigurationError(
            f"export.demo: needs onnxruntime-web {VERSION}, and {path} cannot be read ({error}). "
            "Run `make demo-runtime` in the checkout that this package or image is built from, or leave demo out."
        ) from error
    if digest != DIGESTS[name]:
        raise ConfigurationError(
            f"export.demo: {path} is not that of onnxruntime-web {VERSION}: its digest differs. "
            "Run `make demo-runtime` again."
        )
    return content


def sources() -> list[Path]:
    """Return the files that the page is made of."""
    return sorted(path for path in _FOLDER.iterdir() if path.suffix in (".js", ".j2"))


def scripts(*names: str) -> str:
    """Return the page's scripts of these names as one."""
    return "\n".join((_FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in names)


def _as_global(library: str) -> str:
    """Return the module `library` as a script that defines `ort`: no page of a file may import another file.

    It takes the origin as the base of a URL, and in Firefox that of a file is "null", which is none.
    """
    library = library.replace("location.origin", "location.href")
    (exports,) = re.findall(r"export\{([^}]*)\};", library)
    names = (pair.split(" as ") for pair in exports.split(","))
    fields = ",".join(f"{name}:{own}" for own, name in names)
    return re.sub(r"export\{[^}]*\};[\s\S]*", lambda _: f"globalThis.ort={{{fields}}};", library)


def _drawing_size(shape: ImageShape) -> tuple[int, int]:
    longer = max(shape.width, shape.height)
    return round(_DRAWING * shape.width / longer), round(_DRAWING * shape.height / longer)


def _test_image(shape: ImageShape) -> bytes:
    """Return a PNG that is resized, with a gamma that a browser which converts colors would apply."""
    height, width = 2 * shape.height + 1, 3 * shape.width // 2 + 1
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(3 * x / width + channel) * np.cos(4 * y / height) for channel in range(shape.channels)]
    pixels = np.rint(127.5 + 127.5 * np.stack(waves, axis=-1)).astype(np.uint8)
    chunks, stream = PngInfo(), io.BytesIO()
    chunks.add(b"gAMA", struct.pack(">I", 100_000))  # 1.0
    Image.fromarray(pixels.squeeze()).save(stream, "PNG", pnginfo=chunks)
    return stream.getvalue()


def _answer(folder: Path, example: bytes) -> list[float]:
    """Return the probabilities or predictions for `example` of preprocess.py and the ONNX file."""
    runtime = skew.preprocessing(folder)
    outputs = predict.opened(folder / _MODEL)(runtime.inputs(example, _MODEL))
    return [float(number) for number in np.ravel(skew.numbers(runtime.answer(outputs, _MODEL)))]
