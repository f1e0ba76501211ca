"""Headless Chromium over its DevTools protocol: load a page, ask it questions, take a picture."""

import base64
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-quic", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-port=0",
)  # fmt: skip


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page in a browser of its own; `problems` collects what its console complains about."""

    def __init__(self, profile: Path, width: int = 1200, height: int = 900):
        websockets = pytest.importorskip("websockets.sync.client", reason="the websockets package is not installed")
        program = find_chromium()
        if program is None:
            pytest.skip("no Chromium here (Debian: apt-get install chromium)")
        command = [program, *_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port = self._port(profile)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
                pages = [page for page in json.load(answer) if page["type"] == "page"]
            self._connection = websockets.connect(pages[0]["webSocketDebuggerUrl"], max_size=None)
            self.socket = self._connection.__enter__()
        except Exception:
            self.process.kill()
            raise
        self.problems: list[str] = []
        self._numbers = itertools.count(1)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *error) -> None:
        self._connection.__exit__(None, None, None)
        self.process.terminate()
        self.process.wait(20)

    def call(self, method: str, **params):
        number = next(self._numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv(timeout=60))
            self._listen(message)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.resolve().as_uri())
        for _ in range(300):
            if self.ask("document.readyState === 'complete' && document.body && document.body.dataset.ready || ''"):
                return
            time.sleep(0.1)
        raise AssertionError(f"{path} did not get ready: {self.problems}")

    def ask(self, expression: str):
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, path: Path) -> Path:
        """The whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        width, height = int(size["width"]), int(size["height"])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        shot = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def _listen(self, message: dict) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(str(params["entry"]))
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.problems.append(f"asked the network for {url}")

    def _port(self, profile: Path) -> int:
        for _ in range(300):
            try:
                return int((profile / "DevToolsActivePort").read_text().splitlines()[0])
            except (OSError, ValueError, IndexError):
                if self.process.poll() is not None:
                    raise RuntimeError(f"Chromium ended with code {self.process.returncode}") from None
                time.sleep(0.1)
        raise RuntimeError("Chromium did not open its DevTools port")
