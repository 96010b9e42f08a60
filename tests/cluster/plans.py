"""Plans of small gangs: pools as GKE has them, and workers that speak the exit codes with Python's standard library."""

from __future__ import annotations

import inspect
from typing import Any

from trainyard.process import ports
from trainyard.steps.train.peers import liveness, settings

IMAGE = "python:3.11-slim-bookworm"

_RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "128Mi"}}
POOLS: dict[str, dict[str, Any]] = {
    "cpu": {"kind": "cpu", "nodeSelector": {"cloud.google.com/gke-nodepool": "cpu"}, "resources": _RESOURCES},
    "gpu": {"kind": "gpu", "accelerator": "nvidia-l4", "count": 1, "resources": _RESOURCES},
    "tpu": {
        "kind": "tpu",
        "accelerator": "tpu-v5-lite-podslice",
        "topology": "2x2",
        "count": 4,
        "resources": _RESOURCES,
    },
    "slice": {
        "kind": "tpu",
        "accelerator": "tpu-v5-lite-podslice",
        "topology": "2x4",
        "count": 4,
        "workers": 2,
        "resources": _RESOURCES,
    },
}

# The node is answered as by a worker of Trainyard.
ANSWER = f"{inspect.getsource(liveness)}\nanswer()\n"

# Every worker reaches every other by the name it was given, then says so and leaves.
MEET = (
    f"""
import os, re, socket, sys, threading, time
_NUMBERS = re.compile({settings._NUMBERS.pattern!r})
{inspect.getsource(ports.listen)}
{inspect.getsource(settings.addresses)}"""
    + """
addresses = addresses("TRAINYARD_WORKERS")
index = int(os.environ["TRAINYARD_WORKER_INDEX"])
server = listen(int(addresses[index].rpartition(":")[2]))
def answer():
    while True:
        server.accept()[0].sendall(str(index).encode())
threading.Thread(target=answer, daemon=True).start()
for other, address in enumerate(addresses):
    host, _, port = address.rpartition(":")
    while True:
        try:
            with socket.create_connection((host, int(port)), 2) as peer:
                assert peer.recv(9) == str(other).encode()
            break
        except OSError:
            time.sleep(0.1)
print(f"worker {index} met {len(addresses)}", file=sys.stderr, flush=True)
time.sleep(float(sys.argv[1]))
"""
)

# Works until SIGTERM, then says what a worker says that saved its checkpoint.
WORK = """
import os, signal, sys, time
def stop(*_):
    print("checkpoint saved", file=sys.stderr, flush=True)
    os._exit(143)
signal.signal(signal.SIGTERM, stop)
step = 0
while True:
    step += 1
    print('{"event": "progress", "done": %d, "pid": %d}' % (step, os.getpid()), file=sys.stderr, flush=True)
    time.sleep(0.2)
"""

SLEEP = "import time; time.sleep(600)"

# Worker 1 fails as a step does: with its code, and its sentence as the last event.
FAIL = """
import json, os, sys, time
if os.environ["TRAINYARD_WORKER_INDEX"] == "1":
    event = {"event": "failed", "step": "train", "code": 10, "error": "DataError", "message": "row 7: no label."}
    print(json.dumps(event), file=sys.stderr, flush=True)
    sys.exit(int(sys.argv[1]))
time.sleep(600)
"""


_POOL = {"grace_seconds": 5, "start_deadline_seconds": 240, "shared_memory": "16Mi"}
_POOL_FIELDS = {*_POOL, "queue"}


def plan(run: str, script: str, *arguments: str, pool: str = "cpu", **changes: Any) -> dict[str, Any]:
    """Return a gang of two workers that run `script` on `pool`."""
    plan = {
        "run": run,
        "image": IMAGE,
        "command": ["python3", "-c", ANSWER + script, *arguments],
        "workers": 2,
        "pool": POOLS[pool] | _POOL | {name: value for name, value in changes.items() if name in _POOL_FIELDS},
    }
    return plan | {name: value for name, value in changes.items() if name not in _POOL_FIELDS}
