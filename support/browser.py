"""A headless Chromium for tests: pages are opened in it, scripts run, keys pressed, and its complaints collected.

It is driven by the DevTools protocol over two pipes (``--remote-debugging-pipe``): messages of JSON, each ended by a
zero byte. ``tools/setup_browser.sh`` installs one; tests that need it are skipped, with a reason, where there is none.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Browser", "Page", "PageReplacedError", "find_browser", "open_browser"]

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_PATIENCE = 60.0  # seconds for an answer, on a busy machine
_REPLACED = (  # errors of a command that came while its page was being replaced by another
    "Inspected target navigated or closed",
    "Execution context was destroyed",
    "Cannot find default execution context",
)


def find_browser() -> str | None:
    """Where a Chromium is: what BNNDP_BROWSER names, or one of the usual names."""
    named = os.environ.get("BNNDP_BROWSER")
    return named or next((found for found in map(shutil.which, _NAMES) if found), None)


class PageReplacedError(RuntimeError):
    """The page of a command was replaced by another before the command had an answer."""


class Browser:
    """The protocol: commands are numbered and answered, events come in between."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer, self._number = b"", 0
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, session: str | None = None, /, **parameters: object) -> dict[str, Any]:
        """The answer to a command."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        left = memoryview(json.dumps(message).encode() + b"\0")
        while left:
            left = left[os.write(self._to, left) :]
        while True:
            found = self._next(_PATIENCE)
            if found.get("id") == self._number:
                if "error" in found:
                    said = found["error"]["message"]
                    raise (PageReplacedError if said.startswith(_REPLACED) else RuntimeError)(f"{method}: {said}")
                return found["result"]

    def _next(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            if not select.select([self._from], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._from, 2**16)
            if not part:
                raise ConnectionError("the browser is gone")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    @contextlib.contextmanager
    def page(self, address: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[Page]:
        """A new tab of this size with the page of an address, once it is loaded."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable", session)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", session, features=scheme)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", session, **size)
        page = Page(self, session)
        self.send("Page.navigate", session, url=address)
        page.wait("document.readyState === 'complete' && location.href !== 'about:blank'")
        try:
            yield page
        finally:
            self.send("Target.closeTarget", targetId=target)


class Page:
    """A tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def run(self, script: str) -> Any:
        """The value of an expression, or of the promise that it is."""
        found = self._browser.send(
            "Runtime.evaluate", self._session, expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = _PATIENCE) -> None:
        """Until an expression is true, on this page or on one that replaces it."""
        end = time.monotonic() + seconds
        while not self._holds(script):
            if time.monotonic() > end:
                raise TimeoutError(f"never true: {script}")
            time.sleep(0.02)

    def _holds(self, script: str) -> bool:
        """Whether an expression is true; false on a page that is replaced while it is evaluated."""
        try:
            return bool(self.run(script))
        except PageReplacedError:
            return False

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key."""
        kind = "keyDown" if text else "rawKeyDown"
        keys = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self._browser.send("Input.dispatchKeyEvent", self._session, type=kind, text=text, **keys)
        self._browser.send("Input.dispatchKeyEvent", self._session, type="keyUp", **keys)

    def mouse(self, kind: str, x: float, y: float, *, down: bool) -> None:
        """The mouse is pressed, moved or released at a place."""
        button = {"button": "left", "buttons": int(down), "clickCount": 1}
        self._browser.send("Input.dispatchMouseEvent", self._session, type=kind, x=x, y=y, **button)

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, of scripts, and of the security policy."""
        self.run("0")  # so that what was said before is here
        own = [event for event in self._browser.events if event.get("sessionId") == self._session]
        return [found for found in map(_complaint, own) if found]

    def requests(self) -> list[str]:
        """Addresses that were asked for."""
        sent = (event for event in self._browser.events if event["method"] == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent if event.get("sessionId") == self._session]

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """The page as it looks."""
        found = self._browser.send("Page.captureScreenshot", self._session, captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self._browser.send("Page.printToPDF", self._session)["data"])


def _complaint(event: dict[str, Any]) -> str | None:
    said = event["params"]
    if event["method"] == "Runtime.exceptionThrown":
        return str(said["exceptionDetails"])
    if event["method"] == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
        return str(said["entry"])
    if event["method"] == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
        return str(said["args"])
    return None


@contextlib.contextmanager
def open_browser(program: str) -> Iterator[Browser]:
    """A browser of its own profile, ended with the block."""
    theirs_in, to_browser = os.pipe()
    from_browser, theirs_out = os.pipe()
    with tempfile.TemporaryDirectory(prefix="bnndp-browser-", ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        options += ["--no-first-run", "--no-proxy-server", "--disable-background-networking"]
        shell = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        process = subprocess.Popen(
            ["bash", "-c", shell, program, "--remote-debugging-pipe", f"--user-data-dir={profile}", *options],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Browser(to_browser, from_browser)
        finally:
            os.close(to_browser)
            os.close(from_browser)
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
