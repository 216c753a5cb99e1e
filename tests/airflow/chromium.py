"""A headless Chromium, driven through the pipe of its debugging protocol: no driver to install beside Debian's package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAIT_SECONDS = 60.0


def executable() -> str | None:
    """Where Chromium is, if it is."""
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


class Chromium:
    """One browser with one tab."""

    def __init__(self, *, width: int = 1280, height: int = 900) -> None:
        self._profile = tempfile.mkdtemp(prefix="dpone-test-chromium-")
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        path = executable()
        assert path is not None
        arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
            "--no-first-run",
        ]
        arguments += [f"--user-data-dir={self._profile}", f"--window-size={width},{height}", "--hide-scrollbars", "about:blank"]
        # The protocol speaks on the descriptors 3 and 4.
        shell = ["bash", "-c", f'exec "$0" "$@" 3<&{commands} 4>&{answers}', path, *arguments]
        self._process = subprocess.Popen(
            shell, pass_fds=(commands, answers), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(commands)
        os.close(answers)
        self._number, self._buffer, self.session = 0, b"", ""
        self.problems: list[str] = []
        target = next(one for one in self._tabs() if one["type"] == "page")
        self.session = self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def _tabs(self) -> list[dict[str, Any]]:
        return list(self._call("Target.getTargets")["targetInfos"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command to the tab."""
        return self._call(method, session=self.session, **parameters)

    def go(self, url: str) -> None:
        """Open an address."""
        self.call("Page.navigate", url=url)

    def cookie(self, url: str, name: str, value: str) -> None:
        """Give the browser a cookie, as a login would."""
        self.call("Network.setCookie", url=url, name=name, value=value)

    def dark(self, on: bool) -> None:
        """What the reader's system prefers."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if on else "light"}])

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def until(self, script: str, found: Callable[[Any], bool] = bool) -> Any:
        """Wait until an expression has the wanted value; a page that is loading has none."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not found(value := self.run(script)):
            assert time.monotonic() < deadline, f"{script} stayed {value!r}; {self.problems}"
            time.sleep(0.2)
        return value

    def picture(self, path: Path) -> None:
        """The visible part of the tab as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _call(self, method: str, *, session: str = "", **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], WAIT_SECONDS)
            assert ready, "Chromium does not answer"
            part = os.read(self._read, 1 << 16)
            assert part, "Chromium has ended"
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        """Keep what a developer would see in red."""
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.problems.append(f"{event['params']['entry']['text']} {event['params']['entry'].get('url', '')}")
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(event["params"]["exceptionDetails"].get("text")))
