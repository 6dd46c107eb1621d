"""Pages of the Python reference, one a room, made from the source of the packages before the site is read.

A public name is a function, a class or a constant with a docstring that a module defines at its top level
without a leading underscore, and whatever a package or a room exports (`__all__`). That is listed first, with
a link to where it is defined.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

PACKAGES = {
    "derive": "What derives: programs in, theories, expansions and limits out, all of them SymPy.",
    "numerics": "What computes: experiments in, xarray datasets out.",
}
LEFT_OUT = ("numerics.cli",)  # the commands, which reference/experiment.md lists


@dataclass(frozen=True)
class Module:
    """One file of a package, read and not imported."""

    name: str
    folder: str  # what relative imports start from
    source: str

    @classmethod
    def read(cls, root: Path, path: Path) -> Module:
        """The module in a file under the root."""
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        return cls(name, ".".join(path.parent.relative_to(root).parts), path.read_text())

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def defined(self) -> dict[str, str | None]:
        """The public names that it defines, with their docstrings; None for a constant without one."""
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
        """Its `__all__`."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                return tuple(ast.literal_eval(node.value))
        return ()

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        """Where imported names come from, those for type checkers too: name -> (module, name there)."""
        nodes = [x for x in ast.walk(self.tree) if isinstance(x, ast.ImportFrom) and x.module and x.level < 2]
        return {
            a.asname or a.name: (f"{self.folder}.{x.module}" if x.level else str(x.module), a.name)
            for x in nodes
            for a in x.names
        }


def modules(root: Path) -> dict[str, Module]:
    """Every module of the packages by its name."""
    files = [x for package in PACKAGES for x in sorted((root / package).rglob("*.py"))]
    read = (Module.read(root, x) for x in files)
    return {x.name: x for x in read if not x.name.startswith(LEFT_OUT)}


def home(known: dict[str, Module], module: str, name: str) -> tuple[str, str]:
    """Where an exported name is defined: (module, name there); a module is at home in itself.

    Raises KeyError for a name that leads out of the packages.
    """
    if f"{module}.{name}" in known:
        return f"{module}.{name}", ""
    if name in known[module].defined:
        return module, name
    return home(known, *known[module].imported[name])


def rooms(known: dict[str, Module]) -> dict[str, list[Module]]:
    """The modules of each room, and of each module that stands beside the rooms."""
    found: dict[str, list[Module]] = {}
    for name, module in known.items():
        if "." in name:
            found.setdefault(".".join(name.split(".")[:2]), []).append(module)
    return found


def pages(known: dict[str, Module]) -> dict[str, str]:
    """The text of each page by its name."""
    made = {"index": _index(known)}
    homes = {home(known, module.name, name) for module in known.values() for name in module.exported}
    plain = {(where, name) for where, name in homes if name and known[where].defined[name] is None}
    for room, members in rooms(known).items():
        parts = [f"# {room}"]
        if table := _exports(known, known[room]):
            parts.append(table)
        for module in members:
            if module.name != room:
                parts.append(f"## {module.name.removeprefix(room + '.')}")
            told = [name for name, text in module.defined.items() if text is not None]
            lines = [f".. automodule:: {module.name}"]
            lines += [f"   :members: {', '.join(told)}", "   :undoc-members:"] if told else []
            for where, name in sorted(plain):
                lines += ["", f".. py:data:: {name}", f"   :module: {where}"] if where == module.name else []
            parts.append("\n".join(["```{eval-rst}", *lines, "```"]))
        made[room] = "\n\n".join(parts) + "\n"
    return made


def _exports(known: dict[str, Module], module: Module) -> str:
    """A table of what a package or a room exports; empty if it does not say."""
    rows = []
    for name in module.exported:
        where, there = home(known, module.name, name)
        target = f"{{py:obj}}`{name} <{where}{'.' + there if there else ''}>`"
        text = known[where].defined[there] if there else ast.get_docstring(known[where].tree)
        first = (text or "").split("\n\n")[0]
        rows.append(f"| {target} | {_plain(' '.join(first.split()))} |")
    return "\n".join(["| name | what it is |", "| --- | --- |", *rows]) if rows else ""


def _index(known: dict[str, Module]) -> str:
    parts = [
        "# Python interface",
        "Each package lists what most users need; a page for each room holds every public name.",
    ]
    for package, words in PACKAGES.items():
        listed = [x for x in rooms(known) if x.startswith(package + ".")]
        toc = "\n".join([f"```{{toctree}}\n:caption: {package}\n:maxdepth: 1\n", *listed, "```"])
        parts += [f"## {package}", words, _exports(known, known[package]), toc]
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    """A sentence of a docstring as a cell of a Markdown table: what is no code is escaped."""
    parts = re.split(r"(`+[^`]+`+)", text)
    parts[::2] = [re.sub(r"([\\*_{}\[\]<>$^~|])", r"\\\1", x) for x in parts[::2]]
    parts[1::2] = ["`" + x.strip("`").replace("|", "\\|") + "`" for x in parts[1::2]]
    return "".join(parts)


def write(app: Any, _config: Any) -> None:
    """Writes the pages that changed, and removes those of rooms that are gone."""
    folder = Path(app.srcdir) / "reference" / "api"
    folder.mkdir(exist_ok=True)
    made = pages(modules(Path(app.srcdir).parent))
    for path in folder.glob("*.md"):
        if path.stem not in made:
            path.unlink()
    for name, text in made.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("config-inited", write)
    return {"parallel_read_safe": True}
