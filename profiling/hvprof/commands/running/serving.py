"""The report of a running job as a page that refreshes itself."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from hvd_ext.errors import UsageError
from hvprof.analysis.analysis import Analysis
from hvprof.recording.load import latest_job, load
from hvprof.reporters.page.html import report_page
from hvprof.reporters.page.sections.base import Page
from hvprof.reporters.watch import Watched, render


class LivePage:
    """The page of a job, made once for each reading that a browser requests."""

    def __init__(self, directory: Path, every_s: float) -> None:
        self._directory, self.every_s = directory, every_s
        self._making = threading.Lock()
        self._now = self._page = ""

    def show(self, watched: Watched) -> None:
        """Begin the page with a reading from now on."""
        self.change(render(watched))

    def change(self, now: str) -> None:
        """Begin the page with a text from now on."""
        with self._making:
            self._now, self._page = now, ""

    def html(self) -> str:
        """The page.

        Raises:
            UsageError: there is nothing to show yet.
        """
        with self._making:
            if not self._page:
                recording = load(latest_job(self._directory))
                self._page = report_page(Page(Analysis(recording)), now=self._now)
            return self._page


@contextlib.contextmanager
def served(page: LivePage, address: str, port: int) -> Iterator[str]:
    """Serve a page until the block ends; yields its URL.

    Args:
        page: the page.
        address: address to listen on.
        port: port to listen on; 0: any free one.

    Raises:
        UsageError: the port cannot be listened on.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/":
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            try:
                status, kind, text = HTTPStatus.OK, "html", page.html()
            except UsageError as error:  # such as: no rank has started yet
                status, kind, text = HTTPStatus.SERVICE_UNAVAILABLE, "plain", f"{error}\n"
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Refresh", f"{max(1, round(page.every_s))}")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Print nothing, because the terminal is for the job's end."""

    try:
        server = ThreadingHTTPServer((address, port), Handler)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot serve on {address}:{port}: {why}; use another port") from error
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        host = f"[{address}]" if ":" in address else address
        yield f"http://{host}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
