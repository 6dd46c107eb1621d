"""Pages of the Python reference, one for each package, made from source files before the site is read.

A public name is a function, a class or a constant that a package exports (`__all__`), or that the code on a
page imports. Exported names are listed first, with a link to the module that defines them.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

PACKAGES = {
    "derive": "Derives theories, expansions and limits of programs, as SymPy expressions.",
    "numerics": "Solves theories and trains networks; experiments in, xarray datasets out.",
}
CODE = re.compile(r"^```(?:\{code-cell\}[^\n]*|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NOT_FOR_USERS = {"_build", "api", "contributing"}
LEFT_OUT = ("numerics.cli",)  # the commands, which reference/experiment.md lists


@dataclass(frozen=True)
class Module:
    """One file of a package, read and not imported."""

    name: str
    folder: str  # what relative imports start from
    source: str

    @classmethod
    def read(cls, root: Path, path: Path) -> Module:
        """Read the module of a file under the root."""
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        return cls(name, ".".join(path.parent.relative_to(root).parts), path.read_text())

    @cached_property
    def tree(self) -> ast.Module:
        """Syntax tree of the module's source."""
        return ast.parse(self.source)

    @cached_property
    def defined(self) -> dict[str, str | None]:
        """Names without underscore that the module defines, with docstrings; None for constants without."""
        found: dict[str, str | None] = {}
        for node, after in zip(self.tree.body, [*self.tree.body[1:], None], strict=True):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[node.name] = ast.get_docstring(node) or ""
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [x.id for t in targets for x in ast.walk(t) if isinstance(x, ast.Name)]
                found |= dict.fromkeys(names, str(after.value.value) if said else None)
        return {name: text for name, text in found.items() if not name.startswith("_")}

    @cached_property
    def exported(self) -> tuple[str, ...]:
        """Names in `__all__`."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                return tuple(ast.literal_eval(node.value))
        return ()

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        """Origin of imported names, also for type checkers: name -> (module, name there)."""
        nodes = [x for x in ast.walk(self.tree) if isinstance(x, ast.ImportFrom) and x.module and x.level < 2]
        return {
            a.asname or a.name: (f"{self.folder}.{x.module}" if x.level else str(x.module), a.name)
            for x in nodes
            for a in x.names
        }


def modules(root: Path) -> dict[str, Module]:
    """Return the modules of the packages by name."""
    files = [x for package in PACKAGES for x in sorted((root / package).rglob("*.py"))]
    read = (Module.read(root, x) for x in files)
    return {x.name: x for x in read if not x.name.startswith(LEFT_OUT)}


def home(known: dict[str, Module], module: str, name: str) -> tuple[str, str]:
    """Return where an exported name is defined: (module, name there); (module, "") for a module.

    Raises KeyError for a name that leads out of the packages.
    """
    if name in known[module].defined:
        return module, name
    if name in known[module].imported:
        source, original = known[module].imported[name]
        return home(known, source, original)
    if f"{module}.{name}" in known:
        return f"{module}.{name}", ""
    raise KeyError(name)


def rooms(known: dict[str, Module]) -> dict[str, list[Module]]:
    """Return the modules of each package of the second level, and modules beside these packages."""
    found: dict[str, list[Module]] = {}
    for name, module in known.items():
        if "." in name:
            found.setdefault(".".join(name.split(".")[:2]), []).append(module)
    return found


def exported_names(known: dict[str, Module]) -> set[tuple[str, str]]:
    """Return exported names as pairs (module that defines it, name); of an exported module (module, "")."""
    return {home(known, module.name, name) for module in known.values() for name in module.exported}


def imported_names(known: dict[str, Module], docs: Path) -> set[tuple[str, str]]:
    """Return the names that code on the pages of a folder imports, as `exported_names` does."""
    names = set()
    for page in docs.rglob("*.md"):
        blocks = [] if NOT_FOR_USERS & set(page.parts) else CODE.findall(page.read_text())
        for tree in filter(None, map(_parsed, blocks)):
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module in known:
                    imported = (alias.name for alias in node.names if alias.name != "*")
                    names |= {home(known, node.module, name) for name in imported}
    return names


def _parsed(block: str) -> ast.Module | None:
    """Parse a block of code without the options of its cell; return None if it holds more than Python."""
    try:
        return ast.parse(re.sub(r"^:.*$", "", block, flags=re.MULTILINE))
    except SyntaxError:
        return None


def pages(known: dict[str, Module], docs: Path) -> dict[str, str]:
    """Return the text of each page by its name."""
    made = {"index": _index(known)}
    public = exported_names(known) | imported_names(known, docs)
    for room, members in rooms(known).items():
        parts = [f"# {room}"]
        if table := _exports(known, known[room]):
            parts.append(table)
        for module in members:
            names = [name for name in module.defined if (module.name, name) in public]
            if not names and module.name != room and (module.name, "") not in public:
                continue
            if module.name != room:
                parts.append(f"## {module.name.removeprefix(room + '.')}")
            described = [name for name in names if module.defined[name] is not None]
            lines = [f".. automodule:: {module.name}"]
            lines += [f"   :members: {', '.join(described)}", "   :undoc-members:"] if described else []
            for name in sorted(set(names) - set(described)):
                lines += ["", f".. py:data:: {name}", f"   :module: {module.name}"]
            parts.append("\n".join(["```{eval-rst}", *lines, "```"]))
        made[room] = "\n\n".join(parts) + "\n"
    return made


def _exports(known: dict[str, Module], module: Module) -> str:
    """Return a table of what a package exports; empty if it has no `__all__`."""
    rows = []
    for name in module.exported:
        where, there = home(known, module.name, name)
        target = f"{{py:obj}}`{name} <{where}{'.' + there if there else ''}>`"
        text = known[where].defined[there] if there else ast.get_docstring(known[where].tree)
        first = (text or "").split("\n\n")[0]
        rows.append(f"| {target} | {_plain(' '.join(first.split()))} |")
    return "\n".join(["| name | what it is |", "| --- | --- |", *rows]) if rows else ""


def _index(known: dict[str, Module]) -> str:
    """Return the page that lists the packages of the reference."""
    parts = [
        "# Python interface",
        "Each package lists what most users need; a page for each of its parts has every public name.",
    ]
    for package, words in PACKAGES.items():
        listed = [x for x in rooms(known) if x.startswith(package + ".")]
        toc = "\n".join([f"```{{toctree}}\n:caption: {package}\n:maxdepth: 1\n", *listed, "```"])
        parts += [f"## {package}", words, _exports(known, known[package]), toc]
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    """Return a sentence of a docstring as a cell of a Markdown table, with markup escaped outside of code."""
    parts = re.split(r"(`+[^`]+`+)", text)
    parts[::2] = [re.sub(r"([\\*_{}\[\]<>$^~|])", r"\\\1", x) for x in parts[::2]]
    parts[1::2] = ["`" + x.strip("`").replace("|", "\\|") + "`" for x in parts[1::2]]
    return "".join(parts)


def write(app: Any, _config: Any) -> None:
    """Write the pages that changed, and remove pages of packages that no longer exist."""
    folder = Path(app.srcdir) / "reference" / "api"
    folder.mkdir(exist_ok=True)
    made = pages(modules(Path(app.srcdir).parent), Path(app.srcdir))
    for path in folder.glob("*.md"):
        if path.stem not in made:
            path.unlink()
    for name, text in made.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def setup(app: Any) -> dict[str, Any]:
    """Register the writing of pages; called by Sphinx."""
    app.connect("config-inited", write)
    return {"parallel_read_safe": True}
