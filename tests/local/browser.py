"""A page in headless Chromium, driven over the pipe of its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "components/trainyard/steps/export/browser/runtime"
HAS_DEMO = RUNTIME.exists() or bool(os.environ.get("CI"))

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="no chromium here; CI installs one and runs this"
)
needs_demo = pytest.mark.skipif(
    (CHROMIUM is None or not HAS_DEMO) and not os.environ.get("CI"),
    reason="no chromium, or `make demo-runtime` was not run; CI does both",
)

OPTIONS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--use-fake-device-for-media-stream --use-fake-ui-for-media-stream --remote-debugging-pipe"
)


class Page:
    """A page that is open. complaints: its errors, and what it wrote to the console."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive, self._rest, self._last = send, receive, b"", 0
        self._session: dict[str, str] = {}
        self.complaints: list[str] = []
        self._requests: dict[str, str] = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Runtime", "Log", "Network", "Page", "DOM"):
            self.call(f"{domain}.enable")

    def open(self, path: Path | str, width: int = 1300, scheme: str = "light") -> None:
        """Open the file at `path`, or a URL, and wait until its scripts ran. width: below 600, that of a phone."""
        is_phone = width < 600
        size = {"width": width, "height": 844 if is_phone else 900, "deviceScaleFactor": 1}
        self.call("Emulation.setDeviceMetricsOverride", mobile=is_phone, **size)
        self.call("Emulation.setTouchEmulationEnabled", enabled=is_phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.complaints.clear()
        self._requests.clear()
        self.call("Page.navigate", url=path if isinstance(path, str) else path.as_uri())
        self.run("new Promise((done) => { if (document.readyState === 'complete') done(); else onload = done; })")

    def open_demo(self, exported: Path, width: int = 1300) -> None:
        """Open the page of an export, whose check must hold."""
        self.open(exported / "demo.html", width)
        self.wait("document.documentElement.dataset.checked")
        assert self.run("document.documentElement.dataset.checked") == "true"
        assert self.text("check").startswith("This browser answers a test example as the exported model does")

    def text(self, element: str) -> str:
        """Return the text of the element with this id, or '' if it is hidden."""
        return self.run(f"document.getElementById('{element}').innerText")

    def run(self, script: str) -> Any:
        """Return the value of the JavaScript expression `script`, awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until the JavaScript expression `condition` is true."""
        self.run(
            "new Promise((done) => { const look = setInterval(() => "
            f"{{ if ({condition}) {{ clearInterval(look); done(); }} }}, 20); }})"
        )

    def press(self, key: str) -> None:
        """Press and release the key of this name and character, such as Enter."""
        text = {"Enter": "\r"}.get(key, "")
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def drag(self, selector: str, *points: tuple[float, float]) -> None:
        """Draw a line on the element through `points`, as shares of its width and height."""
        box = self._box(selector)
        for number, (across, down) in enumerate(points):
            place = {"x": box[0] + across * box[2], "y": box[1] + down * box[3], "button": "left"}
            if number == 0:
                self.call("Input.dispatchMouseEvent", type="mousePressed", clickCount=1, **place)
            self.call("Input.dispatchMouseEvent", type="mouseMoved", buttons=1, **place)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", clickCount=1, **place)

    def _box(self, selector: str) -> tuple[float, float, float, float]:
        """Scroll to the element, and return its left, top, width and height in the window."""
        element = f"document.querySelector({json.dumps(selector)})"
        element = f"({element}.scrollIntoView({{block: 'center'}}), {element}.getBoundingClientRect())"
        left, top, width, height = self.run(f"(({{x, y, width, height}}) => [x, y, width, height])({element})")
        return left, top, width, height

    @property
    def requests(self) -> list[str]:
        """The URLs that the page asked for, those that its policy forbids left out."""
        return list(self._requests.values())

    def choose(self, selector: str, file: Path) -> None:
        """Choose `file` in the file input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file)])

    def screenshot(self, to: Path) -> None:
        """Write an image of the whole page."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        to.write_bytes(base64.b64decode(data))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer of the browser to a command of its protocol."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters, **self._session}
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                return answer["result"]
            self._event(answer.get("method", ""), answer.get("params", {}))

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = os.read(self._receive, 1 << 20)
            assert read, "Chromium ended"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _event(self, method: str, parameters: dict[str, Any]) -> None:
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(parameters)[:1000])
        elif method == "Network.requestWillBeSent":
            self._requests[parameters["requestId"]] = parameters["request"]["url"]
        elif method == "Network.loadingFailed" and parameters.get("blockedReason") == "csp":
            del self._requests[parameters["requestId"]]


@contextmanager
def chromium() -> Iterator[Page]:
    """Start Chromium, and end it."""
    to_browser, from_browser = os.pipe(), os.pipe()

    def connect() -> None:
        for end, number in [(os.dup(to_browser[0]), 3), (os.dup(from_browser[1]), 4)]:
            os.dup2(end, number)

    ours = (to_browser[1], from_browser[0])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [CHROMIUM or "chromium", *OPTIONS.split(), f"--user-data-dir={profile}"],
            preexec_fn=connect,
            close_fds=False,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        try:
            yield Page(*ours)
        finally:
            process.terminate()
            process.wait(120)
            for end in ours:
                os.close(end)
