"""The page *Try it* in Chromium without a network: the same theories as in Python, keyboard, contrast, links.

The page is built alone, from `docs/try_it`; `DMFT_SITE=FOLDER` takes a site that was built before.
Without Playwright, Sphinx or Chromium the tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.docs.test_try_it import PROGRAMS, ROOT, TRY_IT, module

pytestmark = pytest.mark.slow
WIDTHS = (400, 1300)
SCHEMES = ("light", "dark")
PARTS = {
    "single-site": "Single-site equations",
    "order-parameters": "Order parameters",
    "responses": "Responses",
    "action": "Action",
    "tensor-program": "Tensor program",
}
COLD_START, DERIVATION = 20.0, 5.0
"""Seconds on two idle cores; a machine that others use as well gets more in proportion to its load."""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
"""Rules of axe-core for the main part of the page; the frame around it is that of the theme."""
PATIENCE = 180_000
"""Milliseconds after which something is taken not to happen at all."""
MISTAKE = "from derive import mlp\n\nprogram = mlp(-1)\n"
ENDLESS = "while True:\n    pass\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a site with this page and the home page."""
    if given := os.environ.get("DMFT_SITE"):
        return Path(given)
    for needed in ("sphinx", "myst_nb", "sphinxcontrib.bibtex", "pydata_sphinx_theme"):
        pytest.importorskip(needed)
    folder = tmp_path_factory.mktemp("site")
    options = ["-D", "nb_execution_mode=off", "-D", "include_patterns=index.md,try_it/index.md"]
    command = [sys.executable, "-m", "sphinx", "-q", *options, "docs", str(folder)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-4000:]
    return folder


class Handler(SimpleHTTPRequestHandler):
    """The site, as any server of files gives it."""

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Yield the address of the page."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/try_it/index.html"
    server.shutdown()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Yield a Chromium that resolves no name and reaches this machine alone."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("there is no chromium on this machine")
    nowhere = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=["--no-sandbox", nowhere])
        yield browser
        browser.close()


@dataclass
class Page:
    """The page in a window, with what the console says and what is asked of other servers."""

    page: Any
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._requested)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _requested(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            self.complaints.append(f"asked for {request.url}")

    def open(self, address: str) -> None:
        """Load the page and wait until Python is there and nothing runs."""
        self.page.goto(address)
        self.page.wait_for_selector("html[data-try-ready]")
        self.idle()

    def idle(self) -> None:
        """Wait until nothing runs."""
        self.page.wait_for_selector("#try-derive:enabled")

    def text(self, name: str) -> str:
        """Return the text of a part of the page."""
        return str(self.page.inner_text(f"#try-{name}"))

    def press(self, name: str) -> None:
        """Click a button and wait until what it starts has ended."""
        self.page.click(f"#try-{name}")
        self.idle()

    def choose(self, part: str) -> None:
        """Choose a tab and wait for what it shows."""
        self.page.click(f"#try-tab-{part}")
        self.page.wait_for_selector("#try-panel section.equations .katex")
        self.idle()

    def write(self, text: str) -> None:
        """Put a text into the editor, as somebody does who pastes it."""
        self.page.focus(".cm-content")
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(text)

    def seconds(self) -> float:
        """Return how long the page says that the last derivation took."""
        return float(next(x for x in self.text("status").split() if x.replace(".", "").isdigit()))

    def latex(self) -> str:
        """Copy the LaTeX of the part that is shown, and return what the clipboard holds."""
        self.page.click("#try-copy")
        self.page.wait_for_function("document.getElementById('try-status').textContent.includes('clipboard')")
        return str(self.page.evaluate("navigator.clipboard.readText()"))

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than its window."""
        return int(
            self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        )


Opener = Callable[..., Page]


@pytest.fixture
def opened(chromium: Any, address: str) -> Iterator[Opener]:
    """Return a function that opens the page in a new window, with an empty cache."""
    contexts, pages = [], []

    def open_page(width: int = 1300, fragment: str = "", scheme: str = "light") -> Page:
        viewport = {"width": width, "height": 900}
        context = chromium.new_context(viewport=viewport, color_scheme=scheme)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        contexts.append(context)
        pages.append(Page(context.new_page()))
        pages[-1].open(address + fragment)
        return pages[-1]

    yield open_page
    complaints = [x for page in pages for x in page.complaints]
    for context in contexts:
        context.close()
    assert not complaints


def patience() -> float:
    """Return how many times longer than on two idle cores something may take now."""
    return max(1.0, os.getloadavg()[0] / 2)


@pytest.mark.parametrize("width", WIDTHS)
def test_each_program_derives_to_the_same_latex_as_in_python(opened: Opener, width: int):
    derivation = module(TRY_IT / "derivation.py")
    begun = time.monotonic()
    window = opened(width)
    cold = time.monotonic() - begun
    print(f"\n{width} pixels: Python and the first theory after {cold:.1f} s, load {os.getloadavg()[0]:.1f}")
    assert cold < COLD_START * patience()
    for name, text in PROGRAMS.items():
        window.page.select_option("#try-menu", name)
        window.page.wait_for_function(
            "document.getElementById('try-status').textContent.startsWith('Derived')"
        )
        window.idle()
        took = [window.seconds()]
        for part in PARTS if width == max(WIDTHS) else list(PARTS)[:1]:
            window.choose(part)
            if part != "single-site":
                took.append(window.seconds())
            assert window.latex() == derivation.asked(text, part)["latex"], (name, part)
            assert window.page.locator(".katex-error").count() == 0, (name, part)
            assert window.overflow() <= 0, (name, part)
        print(f"{name:18}", *took)
        assert max(took) < DERIVATION * patience(), name


def test_the_buttons_check_expand_and_explain(opened: Opener):
    derivation = module(TRY_IT / "derivation.py")
    window = opened(fragment="#linear")
    text = PROGRAMS["linear"]
    window.press("check")
    assert window.text("checked").split("\n\n") == derivation.asked(text, "check")["sentences"]
    window.press("expand")
    window.page.wait_for_selector("#try-panel .assumed")
    series = derivation.asked(text, "expansion")
    assert all(x in window.text("panel") for x in series["conditions"])
    assert window.latex() == series["latex"]
    window.press("explain")
    terms = [x for row in derivation.asked(text, "single-site")["explained"] for x in row["terms"]]
    buttons = window.page.locator("#try-panel button.term")
    assert buttons.count() == len(terms)
    for index in (0, 3, len(terms) - 1):
        buttons.nth(index).click()
        said = " ".join(window.page.inner_text(".explanation:not(:empty) >> nth=-1").split())
        assert said == " ".join(terms[index]["explanation"].split())
        buttons.nth(index).click()
    assert window.page.locator(".explanation:not(:empty)").count() == 0


def test_an_expansion_that_does_not_exist_is_refused_with_the_sentence(opened: Opener):
    derivation = module(TRY_IT / "derivation.py")
    window = opened(fragment="#perceptron")
    window.press("expand")
    window.page.wait_for_selector("#try-panel .refused")
    assert (
        window.text("panel") == derivation.asked(PROGRAMS["perceptron"], "expansion")["refusal"]["sentence"]
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_an_edit_with_an_error_shows_the_sentence_at_its_line(opened: Opener, width: int):
    derivation = module(TRY_IT / "derivation.py")
    window = opened(width)
    window.write(MISTAKE)
    window.page.keyboard.press("Control+Enter")
    window.page.wait_for_selector("#try-refusal:visible")
    refusal = derivation.asked(MISTAKE, "single-site")["refusal"]
    assert window.text("refusal") == f"Line {refusal['line']}: {refusal['sentence']}"
    assert window.page.inner_text(".line-refused") == MISTAKE.splitlines()[refusal["line"] - 1]
    assert window.text("panel").strip() == ""
    window.write(MISTAKE.replace("-1", "1"))
    window.press("derive")
    assert "Derived in" in window.text("status")
    assert not window.page.is_visible("#try-refusal")


def test_a_run_is_stopped_and_python_starts_again(opened: Opener):
    window = opened()
    window.write(ENDLESS)
    window.page.click("#try-derive")
    window.page.wait_for_selector("#try-stop:enabled")
    window.page.click("#try-stop")
    assert window.page.is_enabled("#try-derive")
    window.page.select_option("#try-menu", "linear")
    window.page.wait_for_function("document.getElementById('try-status').textContent.startsWith('Derived')")
    assert "Deep linear network" in window.text("headline")


def test_a_link_restores_the_program_and_waits(opened: Opener):
    text = "# γ₀ in a comment\nfrom derive import mlp\n\nprogram = mlp(3, 'tanh')\n"
    window = opened()
    window.write(text)
    window.press("derive")
    window.page.click("#try-link")
    window.page.wait_for_function("document.getElementById('try-status').textContent.includes('clipboard')")
    link = str(window.page.evaluate("navigator.clipboard.readText()"))
    fragment = link.partition("#")[2]
    assert fragment.startswith("program=")
    other = opened(fragment=f"#{fragment}")
    shown = [x.strip("\n\u200b") for x in other.page.locator(".cm-line").all_inner_texts()]
    assert shown == text.split("\n")
    assert other.text("headline") == "", "a program of a link is not run before somebody has read it"
    assert other.page.is_visible("#try-linked")
    other.press("derive")
    assert "3 hidden layers" in other.text("headline")
    assert other.latex() == window.latex()


def test_a_second_visit_needs_no_network(opened: Opener):
    window = opened()
    window.page.context.set_offline(True)
    begun = time.monotonic()
    window.page.reload()
    window.page.wait_for_selector("html[data-try-ready]")
    window.idle()
    print(
        f"\nsecond visit without a network: {time.monotonic() - begun:.1f} s, load {os.getloadavg()[0]:.1f}"
    )
    assert "Derived in" in window.text("status")


@pytest.fixture
def elsewhere() -> Iterator[tuple[str, list[str]]]:
    """Another server, at another port, and what it is asked for."""
    asked: list[str] = []

    class Listener(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Listener)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()


def test_a_program_sends_nothing_to_another_server(opened: Opener, elsewhere: tuple[str, list[str]]):
    server, asked = elsewhere
    window = opened()
    window.write(f"from js import fetch\nfetch('{server}/secret')\nprogram = 1\n")
    window.press("derive")
    assert "not a program" in window.text("refusal")
    window.page.wait_for_timeout(1000)
    assert not asked
    window.complaints.clear()  # of the request that was refused
    free = window.page.context.new_page()  # a page without the policy reaches the other server
    free.goto(window.page.url.partition("/try_it/")[0] + "/index.html")
    free.evaluate("address => fetch(address, {mode: 'no-cors'})", f"{server}/seen")
    assert asked == ["/seen"]


FOCUSED = """() => {
  const x = document.activeElement;
  if (!x || x === document.body || !x.closest('.try')) return null;
  const titles = (x.getAttribute('aria-labelledby') || '').split(' ').filter(Boolean);
  const named = x.getAttribute('aria-label')
    || titles.map((id) => document.getElementById(id).textContent).join(' ')
    || (x.labels && x.labels.length && x.labels[0].textContent)
    || x.textContent.trim();
  return [x.id || x.className, named.slice(0, 40)];
}"""
"""The element with the focus, and its accessible name."""


def test_the_whole_page_works_by_keyboard(opened: Opener):
    window = opened()
    keys = window.page.keyboard
    window.page.focus("#try-menu")
    keys.press("ArrowDown")  # the second program
    window.page.wait_for_function(
        "document.getElementById('try-headline').textContent.startsWith('Deep linear')"
    )
    window.idle()
    window.page.focus("#try-menu")
    reached = []
    for _ in range(60):
        there = window.page.evaluate(FOCUSED)
        if there is None:
            break
        reached.append(there)
        keys.press("Tab")
    assert all(name for _, name in reached), reached
    names = [x for x, _ in reached]
    wanted = ["try-menu", "try-derive", "try-link", "try-check", "try-expand", "try-explain", "try-copy"]
    assert [x for x in names if x in wanted] == wanted
    assert any("cm-content" in x for x in names), "the editor is not reached, or is not left again"
    assert {"try-tab-single-site", "try-panel"} <= set(names)
    window.page.focus("#try-tab-single-site")
    keys.press("ArrowRight")
    window.page.wait_for_selector("#try-tab-order-parameters[aria-selected=true]")
    assert window.page.evaluate("document.activeElement.id") == "try-tab-order-parameters"
    window.idle()
    keys.press("Home")
    window.page.focus("#try-explain")
    keys.press("Enter")
    window.page.wait_for_selector("button.term")
    window.page.focus("button.term >> nth=1")
    keys.press("Space")
    assert window.page.locator(".explanation:not(:empty)").count() == 1
    window.page.focus("#try-derive")
    keys.press("Enter")
    window.idle()
    assert "Derived in" in window.text("status")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_names_roles_and_contrast_pass_axe(opened: Opener, width: int, scheme: str):
    axe = next((ROOT / "docs" / "_build" / "try_it").glob("*/axe.min.js"), None)
    if axe is None:
        pytest.skip("axe-core is installed when the page is built on this machine")
    window = opened(width, scheme=scheme)
    assert window.page.evaluate("document.documentElement.dataset.theme") == scheme

    def look(state: str) -> None:
        found = window.page.evaluate("only => axe.run({include: [['main']]}, {runOnly: only})", RULES)
        broken = {x["id"]: [y["html"][:200] for y in x["nodes"]] for x in found["violations"]}
        assert not broken, (state, broken)
        assert any(x["id"] == "color-contrast" for x in found["passes"])
        if folder := os.environ.get("DMFT_SCREENSHOTS"):
            window.page.screenshot(path=str(Path(folder) / f"{width}_{scheme}_{state}.png"), full_page=True)

    window.page.evaluate(axe.read_text())
    window.press("check")
    look("derived")
    window.press("explain")
    window.page.click("button.term >> nth=1")
    look("explained")
    window.page.click("#try-tab-action")
    window.idle()
    look("action")
    window.write(MISTAKE)
    window.press("derive")
    look("refused")


def test_the_home_page_leads_to_the_page_in_one_click(opened: Opener):
    window = opened()
    window.page.goto(window.page.url.partition("/try_it/")[0] + "/index.html")
    window.page.click("main a:has-text('Derive it in the browser')")
    window.page.wait_for_selector("#try-editor .cm-content")
