"""What a step says, line by line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

TWO_THREADS = """
import threading
from trainyard import events
threads = [threading.Thread(target=lambda: [events.emit("said", number=n) for n in range(2000)]) for _ in "ab"]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_lines_of_two_threads_never_become_one() -> None:
    environment = os.environ | {"TRAINYARD_EVENTS": "json", "PYTHONUNBUFFERED": "1"}
    said = subprocess.run(
        [sys.executable, "-c", TWO_THREADS], env=environment, stderr=subprocess.PIPE, text=True
    ).stderr
    numbers = [json.loads(line)["number"] for line in said.splitlines()]
    assert sorted(numbers) == sorted([*range(2000)] * 2)
