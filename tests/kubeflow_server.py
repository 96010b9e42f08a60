"""An HTTP server that answers as the API of Kubeflow Pipelines 2.17 does, as far as a run is submitted and followed.

It executes nothing itself: `start` says what a run does, in a thread of its own. `execute` is such a function.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml
from tests.login_proxy import Answers
from tests.unit import report_folders

from trainyard.contract import keys
from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.pipeline import Pipeline
from trainyard.graph import OUTPUTS
from trainyard.report import pipeline_run
from trainyard.runtime.task import write_note
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage

STEP_SECONDS = 0.5  # several polls of whoever follows, also on a busy machine

_ID = "0b9f4c1e-0000-4000-8000-00000000000{}"


@dataclass
class Kubeflow:
    """What the server holds. start: called with the run's id and the package when a run is created.

    refuse: statuses that answer the next requests for a run or the schedules, in this order. asked: how often a run was
    asked for.
    """

    start: Callable[[str, str], None] = lambda run_id, package: None
    refuse: list[int] = field(default_factory=list)
    address: str = ""
    asked: int = 0
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    schedules: list[dict[str, Any]] = field(default_factory=list)

    def tell(self, run_id: str, state: str, **tasks: str) -> None:
        """Say that the run is in `state`, and its tasks in theirs."""
        now = _now()
        run, known = self.runs[run_id], {task["display_name"]: task for task in self.runs[run_id]["tasks"]}
        for name, task in tasks.items():
            entry = known.setdefault(name, {"display_name": name, "start_time": now})
            entry |= {"state": task} | ({"end_time": now} if task in ("SUCCEEDED", "FAILED") else {})
        ended = {"finished_at": now} if state in ("SUCCEEDED", "FAILED", "CANCELED") else {}
        run |= {"state": state, "tasks": list(known.values())} | ended


def _now() -> str:
    return datetime.now(UTC).isoformat()


class _Handler(Answers):
    server_state: Kubeflow

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path = url.path.removeprefix("/apis/v2beta1/")
        state, query = self.server_state, parse_qs(url.query)
        equal = json.loads(query["filter"][0])["predicates"][0] if "filter" in query else None
        if path == "healthz":
            return self.answer(200, {"tag_name": "2.17.0", "multi_user": False})
        if path == "runs":
            listed = [_run(run) for run in reversed(state.runs.values())]
            return self.answer(
                200, {"runs": [run for run in listed if not equal or run["display_name"] == equal["string_value"]]}
            )
        if match := re.fullmatch(r"runs/([^/:]+)", path):
            state.asked += 1
            if state.refuse:
                return self.answer(state.refuse.pop(0), {"message": "the session has expired"})
            if match[1] not in state.runs:
                told = f"Run {match[1]} not found"
                details = [{"@type": "type.googleapis.com/google.rpc.Status", "code": 5, "message": told}]
                inside = f"Failed to get a run: Failed to fetch run {match[1]}: ResourceNotFoundError: {told}"
                return self.answer(404, {"code": 5, "message": inside, "details": details})
            return self.answer(200, _run(state.runs[match[1]]))
        if path == "recurringruns":
            refused = state.refuse and state.refuse.pop(0)
            return self.answer(refused or 200, {"message": "no"} if refused else {"recurringRuns": state.schedules})
        if match := re.fullmatch(r"pipelines/[^/]+/versions/(.+)", path):
            spec = next(yaml.safe_load_all(state.packages[match[1]]))
            return self.answer(200, {"pipeline_version_id": match[1], "pipeline_spec": {"pipeline_spec": spec}})
        if path.endswith("/versions"):
            known = [name for name in state.packages if equal and name == equal["string_value"]]
            return self.answer(200, {"pipeline_versions": [{"pipeline_version_id": name} for name in known]})
        self.answer(200, {})  # no pipeline or experiment is known before it is made

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        path, state = url.path.removeprefix("/apis/v2beta1/"), self.server_state
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == "pipelines/upload_version":
            name = parse_qs(url.query)["name"][0]
            boundary = self.headers["Content-Type"].partition("boundary=")[2].encode()
            state.packages[name] = body.split(b"\r\n\r\n", 1)[1].split(b"\r\n--" + boundary)[0].decode()
            return self.answer(200, {"pipeline_version_id": name})
        if path == "runs":
            sent = json.loads(body)
            run_id = _ID.format(len(state.runs))
            state.runs[run_id] = sent | {"run_id": run_id, "created_at": _now(), "state": "PENDING", "tasks": []}
            package = state.packages[sent["pipeline_version_reference"]["pipeline_version_id"]]
            threading.Thread(target=state.start, args=(run_id, package), daemon=True).start()
            return self.answer(200, _run(state.runs[run_id]))
        if path == "recurringruns":
            made = json.loads(body) | {"recurring_run_id": str(len(state.schedules)), "created_at": _now()}
            state.schedules.append(made | {"status": "ENABLED"})
            return self.answer(200, made)
        if match := re.fullmatch(r"runs/([^/:]+):terminate", unquote(path)):
            state.tell(match[1], "CANCELED")
            return self.answer(200, {})
        kind = path.rstrip("/").rpartition("/")[2].removesuffix("s")
        self.answer(200, {f"{kind}_id": f"the-{kind}"})


def _run(run: dict[str, Any]) -> dict[str, Any]:
    """Return the run as Kubeflow's API gives it: nodes of Argo are among its tasks, and executions without a name."""
    known = {name: value for name, value in run.items() if name != "tasks"}
    tasks, made = run["tasks"], {"create_time": run["created_at"], "start_time": run["created_at"]}
    nodes = [{"display_name": name, "state": run["state"], **made} for name in ("root", "root(0)", "executor(0)")]
    nodes += [task | {"display_name": f"{task['display_name']}{end}"} for task in tasks for end in ("-driver", "(0)")]
    executions = [{"execution_id": str(number), **made} for number in range(len(tasks))]
    return known | {"run_details": {"task_details": [*nodes[:3], *tasks, *nodes[3:], *executions]}}


@contextmanager
def serve(kubeflow: Kubeflow) -> Iterator[Kubeflow]:
    """Serve `kubeflow` on this machine until the block ends."""
    handler = type("Handler", (_Handler,), {"server_state": kubeflow})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        kubeflow.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield kubeflow
        server.shutdown()


def execute(kubeflow: Kubeflow, run_id: str, package: str, verdict: str = "blessed") -> None:
    """Do as the steps of the run of `package`, see `leave_run`."""
    parameters = next(yaml.safe_load_all(package))["root"]["inputDefinitions"]["parameters"]
    known = {name: parameter.get("defaultValue") for name, parameter in parameters.items()}
    recipe = documents.parse(known["recipe"], Recipe, name="recipe")
    leave_run(kubeflow, run_id, recipe, known["storage"], verdict)


def leave_run(kubeflow: Kubeflow, run_id: str, recipe: Recipe, root: str, verdict: str = "blessed") -> None:
    """Leave the documents of `report_folders` below `root` where the steps of a run do, and tell of the steps."""
    made = report_folders.whole_run(Path(root).parent / "documents")
    if verdict == "refused":
        document = Evaluation.read(made["evaluate"])
        failed = [threshold.model_copy(update={"passed": False}) for threshold in document.gate.thresholds]
        gate = document.gate.model_copy(update={"verdict": verdict, "thresholds": failed})
        document.model_copy(update={"gate": gate}).write(Path(made["evaluate"]))
    pipeline, folder = Pipeline(root, recipe), keys.run_folder(root, recipe.name, run_id)
    for name in OUTPUTS if verdict == "blessed" else OUTPUTS[:3]:
        kubeflow.tell(run_id, "RUNNING", **{name: "RUNNING"})
        time.sleep(STEP_SECONDS)
        output = pipeline.place(name).output
        with storage.stage(output, producer=f"trainyard.{name}") as staging:
            shutil.copytree(made[name], staging, dirs_exist_ok=True)
        pipeline.outputs[name] = output
        write_note(folder, name, {"folder": output, "seconds": report_folders.SECONDS[name]})
        kubeflow.tell(run_id, "RUNNING", **{name: "SUCCEEDED"})
    pipeline_run.write_end(recipe, root, run_id, name)
    kubeflow.tell(run_id, "SUCCEEDED")
