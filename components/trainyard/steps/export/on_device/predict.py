"""Print what the model in this folder answers for each image, or for each row of a JSON file.

python predict.py photo.jpg
python predict.py row.json --model model_int8.tflite
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainyard.steps.export.on_device.columns import Preprocessing

_LITE = ("float32", "float16", "dynamic", "int8", "batch")
_FILES = (*(f"model_{kind}.tflite" for kind in _LITE), "model.onnx")


def main() -> None:
    """Read the command line and print an answer a line."""
    folder = Path(__file__).resolve().parent
    here = [file for file in _FILES if (folder / file).exists()]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="Images, or JSON files with a row or a list of rows.")
    parser.add_argument("--model", choices=here, help="By default the first that a library here can run.")
    parser.add_argument("--json", action="store_true", help="Print probabilities too, an object a line.")
    options = parser.parse_args()
    file = options.model or next((name for name in here if _runtime(name)), "")
    if not _runtime(file or here[0]):
        raise SystemExit(f"{file or here[0]}: nothing here runs it. Install ai-edge-litert, or onnxruntime for ONNX.")
    preprocessing = Preprocessing(folder)
    try:
        ask = opened(folder / file)
    except Exception as error:  # neither library says what it raises
        raise SystemExit(f"{file}: cannot be loaded ({' '.join(str(error).split())}). Copy it again.") from error
    for path in options.files:
        try:
            answers = [
                preprocessing.answer(ask(preprocessing.inputs(example, file)), file)
                for example in preprocessing.read(path)
            ]
        except (OSError, ValueError, RecursionError) as error:
            raise SystemExit(f"{path}: {error}") from error
        for answer in answers:
            print(json.dumps(answer) if options.json else answer.get("label", answer.get("prediction")))


def _runtime(file: str) -> bool:
    """Return True if the library that runs `file` is installed."""
    return find_spec("onnxruntime" if file.endswith(".onnx") else "ai_edge_litert") is not None


def opened(path: Path) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Return the function of the file at `path`, from inputs to outputs by name."""
    if path.suffix == ".onnx":
        from onnxruntime import InferenceSession

        session = InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return lambda inputs: dict(zip(names, session.run(names, inputs)))  # noqa: B905 - Python 3.9
    if path.suffix != ".tflite":
        raise ValueError(f"{path.name}: predict.py asks .tflite and .onnx files. Name one of them.")
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path))
    interpreter.allocate_tensors()  # refuses operations that are not LiteRT's own
    ask = interpreter.get_signature_runner()
    return lambda inputs: ask(**inputs)


if __name__ == "__main__":
    main()
