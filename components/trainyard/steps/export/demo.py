"""demo.html: one page that runs the ONNX file in a browser, without a server and without requests.

Its scripts do what preprocess.py does; they get its patterns and tables as data.
"""

from __future__ import annotations

import base64
import datetime
import gzip
import hashlib
import io
import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from trainyard.contract.artifacts.preprocess import Examples, ImageShape
from trainyard.contract.version import PREPROCESSING, VOCABULARIES
from trainyard.data.values import CYCLE, LAST_CHANGE, zone_changes
from trainyard.errors import ConfigurationError
from trainyard.report import pages
from trainyard.spec.recipe import Recipe
from trainyard.steps.export import skew
from trainyard.steps.export.on_device import predict, words
from trainyard.values import patterns

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

SOURCES_DIGEST = "4cf4caab4d38becc434d181db20c9a069bcd9f893bcc84fd7cb3f9743126b5ee"
"""SHA-256 of the template and the scripts, so that the keys of exports change with them; a test holds it."""

_MODEL = "model.onnx"
_PATTERNS = ("NUMBER", "WHOLE", "EXPONENT", "TIMESTAMP", "TIME", "DAY", "TRUE", "FALSE")
_MORE_PATTERNS = ("SPACE", "LINE_BREAK", "MISSING", "MAX_FLOAT32")
_MOST_CHOICES = 20  # of a select; chosen: more are easier to type
_DRAWING = 280  # pixels of the longer side; chosen


def write(recipe: Recipe, document: Examples, folder: Path) -> None:
    """Write demo.html of the exported files in `folder`. Call after `calling.write`.

    Raises `ConfigurationError` if no browser can run the transform, or the runtime is not installed.
    """
    if not (folder / "preprocess.py").exists():
        raise ConfigurationError(
            "export.demo: preprocessing_fn of the recipe's module is TensorFlow code, which no browser runs. "
            "Leave demo out, or let the recipe's features describe the columns."
        )
    library, wasm = runtime_files()
    library_script = _as_global(gzip.decompress(library).decode())
    kind = "columns" if document.image is None else "images"
    script = scripts("page", kind, f"{kind}_form", "demo")
    content = json.loads((folder / PREPROCESSING).read_text(encoding="utf-8"))
    columns = None if document.image else _columns(content, folder)
    example = _test_image(document.image) if document.image else _row(folder)
    page = {
        "preprocessing": content,
        "labels": document.labels,
        "columns": columns,
        "check": {
            "example": base64.b64encode(example).decode() if isinstance(example, bytes) else example,
            "answer": _answer(folder, example),
        },
        **({} if document.image else tables(content, recipe.data.zone, folder)),
    }
    text = pages.template(_FOLDER / "demo.html.j2").render(
        labels=document.labels,
        separator=recipe.data.label_separator,
        targets=document.targets or [document.label],
        thresholds=content["thresholds"],
        columns=columns,
        image=document.image,
        drawing=_drawing_size(document.image) if document.image else None,
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


def tables(content: dict[str, Any], zone: datetime.tzinfo, folder: Path) -> dict[str, Any]:
    """Return the patterns, vocabularies and time zone for the scripts of a table."""
    changes, offsets = zone_changes(zone)
    return {
        "patterns": {name: getattr(patterns, name) for name in (*_PATTERNS, *_MORE_PATTERNS)},
        "own_words": [words.OWN_FIRST, words.OWN_LAST],
        "zone": {"changes": changes, "offsets": offsets, "last": LAST_CHANGE, "cycle": CYCLE},
        "vocabularies": {name: _lines(folder, name) for name in content["vocabularies"]},
    }


def _lines(folder: Path, vocabulary: str) -> list[str]:
    return (folder / VOCABULARIES / vocabulary).read_text(encoding="utf-8", errors="replace").split("\n")[:-1]


def _row(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = json.loads((folder / "examples" / "row.json").read_text(encoding="utf-8"))
    return row


def _columns(content: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Return the fields of the form, one for each raw column."""
    row, raw = _row(folder), {column["name"]: column for column in content["raw_features"]}
    described = json.loads((folder / "signature.json").read_text(encoding="utf-8"))["columns"]
    return [_field(column, raw[column["name"]], row[column["name"]], folder) for column in described]


def _field(column: dict[str, Any], raw: dict[str, Any], example: Any, folder: Path) -> dict[str, Any]:
    settings, learned = raw["column"] or {}, raw.get("learned") or {}
    kind, note, choices = "text", "", list[str]()
    if column["dtype"] == "float32":
        kind, note = "number", "A number; empty if missing."
        if column["range"]:
            note += " In training {:.6g} to {:.6g}.".format(*column["range"])
        example = f"{example:.6g}"
    elif settings.get("type") == "date":
        kind = "datetime-local" if settings["hour"] else "date"
        example = f"{example}T00:00" if settings["hour"] else example
    elif settings.get("type") == "category":
        choices = [value for value in _lines(folder, learned["vocabulary"]) if value != learned["missing"]]
        if len(choices) <= _MOST_CHOICES:
            kind = "choice"
        else:
            note = f"One of {len(choices):,} values, or another one; empty if missing."
    elif settings.get("separator") is not None:
        note = f"Values with {settings['separator']} between them."
    elif settings.get("type") == "text":
        kind = "textarea"
    return {"name": column["name"], "kind": kind, "note": note, "choices": choices, "example": example}


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


def _answer(folder: Path, example: Any) -> list[float]:
    """Return the probabilities or predictions for `example` of preprocess.py and the ONNX file."""
    runtime = skew.preprocessing(folder)
    outputs = predict.opened(folder / _MODEL)(runtime.inputs(example, _MODEL))
    return [float(number) for number in np.ravel(skew.numbers(runtime.answer(outputs, _MODEL)))]
