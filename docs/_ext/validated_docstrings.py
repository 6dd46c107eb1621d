"""Validation of the docstrings of exported names by numpydoc, in the build of the site and in a test.

Every function, class and method that a package exports is read by `numpydoc.validate`. Parameters of a class
may stand under *Parameters* or *Attributes*; an array states its shape.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpydoc.docscrape import get_doc_object
from numpydoc.validate import Validator, validate
from public_names import exported_names, modules
from sphinx.errors import ExtensionError

CODES = {
    "GL08",  # no docstring
    "SS01",  # no summary
    "SS02",  # begins with a capital
    "SS03",  # ends with a period
    "SS05",  # imperative
    *(f"PR{number:02}" for number in range(1, 11)),  # parameters: in order, with type and description
    "RT01",  # Returns
    "RT03",
    "RT04",
    "RT05",
    "YD01",  # Yields
}


def exported(root: Path) -> Iterator[str]:
    """Yield the full names of what packages export, and of the public methods of classes among it."""
    for module, name in sorted(exported_names(modules(root))):
        if not name:
            continue
        value = getattr(importlib.import_module(module), name)
        if not inspect.isclass(value) and not inspect.isfunction(value):
            continue
        yield f"{module}.{name}"
        if inspect.isclass(value):
            kinds = (classmethod, staticmethod, property)
            for key, member in vars(value).items():
                if not key.startswith("_") and (inspect.isfunction(member) or isinstance(member, kinds)):
                    yield f"{module}.{name}.{key}"


def findings(name: str) -> list[str]:
    """Return the defects of the docstring of one name, a sentence each."""
    read = Validator(get_doc_object(Validator._load_obj(name)))
    wrong = [(code, text) for code, text in validate(name)["errors"] if code in CODES]
    if inspect.isclass(read.obj):
        attributes = {x.name.split(":")[0].strip() for x in read.doc["Attributes"]}
        parameters = () if getattr(read.obj, "_is_protocol", False) else read.signature_parameters
        missing = set(parameters) - set(read.doc_all_parameters) - attributes
        wrong = [(code, text) for code, text in wrong if code != "PR01"]
        wrong += [("PR01", f"Parameters {missing} not documented")] if missing else []
    annotations = getattr(read.obj, "__annotations__", {})
    for parameter in read.doc_all_parameters:
        kind = read.parameter_type(parameter) or ""
        is_array = re.search(r"\b(Array|NDArray|ndarray)\b", str(annotations.get(parameter, "")))
        if is_array and not re.search(r"shape|\(", kind):
            wrong.append(("shape", f'Parameter "{parameter}" is an array without a shape'))
    return [f"{name}: {code} {text}" for code, text in wrong]


def all_findings(root: Path) -> list[str]:
    """Return the defects of the docstrings of all exported names."""
    return [x for name in exported(root) for x in findings(name)]


def check(app: Any, _config: Any) -> None:
    """Raise ExtensionError if a docstring of an exported name is not in numpydoc's form."""
    if wrong := all_findings(Path(app.srcdir).parent):
        raise ExtensionError("docstrings of exported names:\n" + "\n".join(wrong))


def setup(app: Any) -> dict[str, Any]:
    """Register the check; called by Sphinx."""
    app.connect("config-inited", check)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    wrong = all_findings(Path(__file__).parents[2])
    print("\n".join(wrong) or "docstrings of exported names: in numpydoc's form")
    sys.exit(bool(wrong))
