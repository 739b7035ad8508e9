"""Headless Chromium over its debugging pipe: only the browser itself has to be installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flowdist.report.record.page import timeline_page
from flowdist.report.record.timeline import Timeline

# dup first: one of the two may be 3 or 4 already
PLACE = """
import os, sys
low, high = os.dup(int(sys.argv[1])), os.dup(int(sys.argv[2]))
low, high = os.dup2(low, 20), os.dup2(high, 21)
os.dup2(low, 3), os.dup2(high, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_browser() -> str | None:
    """Return the path of a browser: FLOWDIST_BROWSER, or the first one on the path; None if there is none."""
    return os.environ.get("FLOWDIST_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


needs_browser = pytest.mark.skipif(find_browser() is None, reason="no Chromium on the path, nor in FLOWDIST_BROWSER")


class Browser:
    """Browser with one page. `requests` holds the requests of any other address than that of the page."""

    def __init__(self, program: str, folder: Path) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()

        # --no-sandbox: the page is our own, and containers refuse the sandbox
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--window-size=1300,900"]
        flags.append(f"--user-data-dir={folder}")
        self._process = subprocess.Popen(
            # the browser reads from descriptor 3 and writes to 4, nowhere else
            [sys.executable, "-c", PLACE, str(to_read), str(to_write), program, *flags, "about:blank"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._n, self._rest, self._session = 0, b"", ""
        self.requests: list[str] = []
        self.problems: list[str] = []
        self._loaded: set[str] = set()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method: str, **params: Any) -> Any:
        """Return the answer to one command, and keep the events that come before it."""
        self._n += 1
        message = {"id": self._n, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._next()
            if heard.get("id") == self._n:
                assert "error" not in heard, heard
                return heard["result"]

    def _next(self) -> Any:
        while b"\0" not in self._rest:
            data = os.read(self._read, 1 << 16)
            assert data, "the browser ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        heard = json.loads(line)
        match heard.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(heard["params"]["request"]["url"])
            case "Page.lifecycleEvent" if heard["params"]["name"] == "load":
                self._loaded.add(heard["params"]["loaderId"])
            case "Runtime.exceptionThrown":
                self.problems.append(heard["params"]["exceptionDetails"]["exception"].get("description", "?"))
            case "Log.entryAdded":
                self.problems.append(heard["params"]["entry"]["text"])
        return heard

    def open(self, path: Path | str) -> float:
        """Open a page, and return the seconds until it says that it is drawn."""
        begun = time.monotonic()
        page = self.call("Page.navigate", url=path if isinstance(path, str) else path.as_uri())["loaderId"]
        while page not in self._loaded:  # what is asked before that may be asked of the page before
            self._next()
        while self.value("document.documentElement?.dataset.ready || ''") != "yes":
            assert time.monotonic() < begun + 60, f"the page is not ready: {self.problems}"
        self.frame()
        return time.monotonic() - begun

    def value(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def frame(self) -> None:
        """Wait until all requested drawing is done."""
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)
        self.frame()

    def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.frame()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)


def opened(browser: Browser, timeline: Timeline, folder: Path) -> float:
    path = folder / "out.html"
    path.write_text(timeline_page(timeline))
    took = browser.open(path)
    assert browser.problems == [] and {url for url in browser.requests if url != path.as_uri()} <= {"about:blank"}
    return took


def place_of(browser: Browser, item: str) -> tuple[float, float]:
    """Return the middle of an item on the screen."""
    code = f"""(() => {{ const item = {item}, row = rows.find(r => r.items.includes(item));
        const box = canvas.getBoundingClientRect(), top = row.kind === 'events' ? 0 : scroller.scrollTop;
        return [box.left + (x(item.t0) + x(item.t1)) / 2, box.top + row.y - top + row.height / 2]; }})()"""
    x, y = browser.value(code)
    return x, y


def details(browser: Browser) -> str:
    return str(browser.value("document.getElementById('details').innerText"))
