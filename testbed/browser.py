"""A headless Chromium, driven over a pipe: no port, no network, no further packages."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hvd_ext.system.process import end_tree

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # root may not have one
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    # Whatever a page asks for, it does not get.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=127.0.0.1:9",
)


def find() -> str | None:
    """The browser, or None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """A tab. `complaints` are console messages, `requests` the addresses it asked for."""

    def __init__(self, commands: int, events: int) -> None:
        self._commands, self._events = commands, events
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, path: Path) -> None:
        """Load a file and wait until it is complete."""
        self.complaints, self.requests = [], []
        self.call("Page.navigate", url=path.resolve().as_uri())
        while (event := self._read()).get("method") != "Page.loadEventFired":
            self._note(event)

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def settled(self, promise: str) -> Any:
        """The result of the promise that a JavaScript expression returns."""
        found = self.call(
            "Runtime.evaluate", expression=promise, returnByValue=True, awaitPromise=True
        )
        return found["result"].get("value")

    def show(self, width: int, *, dark: bool) -> None:
        """Be a screen of that width, in light or dark mode."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path, height: int) -> None:
        """Write the page's first `height` pixels as a PNG."""
        width = self.value("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._events, 1 << 16)
            assert more, "the browser has ended"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        method, about = event.get("method"), event.get("params", {})
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(about))
        elif method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Page]:
    """A browser with one tab; it has ended when the block has.

    Args:
        program: from `find`.
        profile: an empty directory for what it writes.
    """
    to_browser, commands = os.pipe()
    events, from_browser = os.pipe()
    # Chromium reads commands from descriptor 3 and answers on 4.
    script = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
    command = ["bash", "-c", script, program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        command,
        pass_fds=(to_browser, from_browser),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Page(commands, events)
    finally:
        # Its other processes write to the profile, which the caller removes.
        end_tree(process)
        os.close(commands)
        os.close(events)
