"""Build of the site without warnings, and every page in a browser without a network.

The site is built once for this module. Pages are executed if their code, the packages or the examples changed
since the last build in `docs/_build`; `DMFT_SITE=FOLDER` takes a site that was built before.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pkgutil
import shutil
import subprocess
import sys
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
WIDTHS = (400, 1300)
PACKAGES = ("derive", "numerics")
CHECKS = Path(__file__).with_name("browser.html")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site."""
    if given := os.environ.get("DMFT_SITE"):
        return Path(given)
    for module in ("sphinx", "myst_nb", "sphinxcontrib.bibtex", "pydata_sphinx_theme"):
        pytest.importorskip(module)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(folder / "doctrees")]
    run = subprocess.run([*command, "docs", str(folder / "html")], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-4000:]
    return folder / "html"


class Page(HTMLParser):
    """Parser that collects names on a page that can be linked to, its links, and the files that it loads."""

    def __init__(self, path: Path):
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.names |= {given[key] for key in ("id", "name") if key in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in ("script", "img", "iframe") and "src" in given:
            self.loaded.append(given["src"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon"):
            self.loaded.append(given["href"])


def names_a_program(fragment: str) -> bool:
    """Return whether a fragment of *Try it* is the name of one of its programs, or holds a program itself."""
    if fragment.startswith("program="):
        code = fragment.removeprefix("program=")
        return b"program" in urlsafe_b64decode(code + "=" * (-len(code) % 4))
    return (ROOT / "docs" / "try_it" / "programs" / f"{fragment}.py").is_file()


def test_no_link_is_broken_and_nothing_is_loaded_from_elsewhere(site: Path):
    pages = {path: Page(path) for path in sorted(site.rglob("*.html")) if "_static" not in path.parts}
    broken = []
    for path, page in pages.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded and parts.scheme != "data":
                    broken.append(f"{path.relative_to(site)} loads {link}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                broken.append(f"{path.relative_to(site)} -> {link}")
            elif target == site.resolve() / "try_it" / "index.html":  # its fragment may hold a program
                name = unquote(parts.fragment)
                if name and name not in pages[target].names and not names_a_program(name):
                    broken.append(f"{path.relative_to(site)} -> {link} (no such program there)")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].names:
                broken.append(f"{path.relative_to(site)} -> {link} (no such name there)")
    assert not broken, "\n".join(broken)


def test_every_exported_name_stands_in_the_reference(site: Path):
    inventory = pytest.importorskip("sphinx.util.inventory").InventoryFile
    with (site / "objects.inv").open("rb") as file:
        kinds = inventory.load(file, "", lambda base, uri: uri)
    documented = {name for kind, names in kinds.items() if kind.startswith("py:") for name in names}
    packages = [
        *PACKAGES,
        *(x.name for p in PACKAGES for x in pkgutil.walk_packages([p], f"{p}.") if x.ispkg),
    ]
    packages = [x for x in packages if x != "numerics.cli"]  # the commands are on a page of their own
    missing = []
    for module in map(importlib.import_module, packages):
        for name in getattr(module, "__all__", ()):
            x = getattr(module, name)
            if getattr(x, "__module__", "").startswith(PACKAGES) and hasattr(x, "__qualname__"):
                found = f"{x.__module__}.{x.__qualname__}" in documented
            else:  # a module, or an object that does not say where it is from
                found = inspect.ismodule(x) or any(y.endswith(f".{name}") for y in documented)
            if not found:
                missing.append(f"{module.__name__}.{name}")
    assert len(documented) > 300
    assert not missing


class Handler(SimpleHTTPRequestHandler):
    """Server of the site and of the page with the checks, which receives the reports of the checks."""

    checks = b""
    reports: Queue[Any] = Queue()

    def do_GET(self) -> None:
        if self.path != "/checks":
            return super().do_GET()
        self._answer(self.checks)

    def do_POST(self) -> None:
        self.reports.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    """Yield the address of the site and of the checks."""
    pages = [str(x.relative_to(site)) for x in sorted(site.rglob("*.html")) if "_modules" not in x.parts]
    names = f"const PAGES = {json.dumps(pages)}, WIDTHS = {json.dumps(WIDTHS)};"
    Handler.checks = CHECKS.read_text().replace("<script>", f"<script>{names}").encode()
    Handler.reports = Queue()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_a_browser_without_a_network_shows_every_page(served: str, tmp_path: Path):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("there is no chromium on this machine")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-dev-shm-usage",
    ]
    nowhere = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    logged = ["--enable-logging=stderr", "--remote-debugging-port=0", f"--user-data-dir={tmp_path}"]
    with (tmp_path / "stderr").open("w+") as stderr:
        running = subprocess.Popen([browser, *flags, nowhere, *logged, f"{served}/checks"], stderr=stderr)
        try:
            report = Handler.reports.get(timeout=1200)
        finally:
            running.terminate()
            running.wait()
        stderr.seek(0)
        console = [x for x in stderr if "CONSOLE" in x and any(y in x for y in ("rror", "ailed", "ncaught"))]
    assert not {page: found for page, found in report.items() if found}
    assert not console
    assert len(report) > 2 * 40
