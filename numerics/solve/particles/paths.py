"""Sampled paths of a replica, for whoever asks for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sympy import Expr
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import ell
from numerics.paths import Block, Paths, dimension
from numerics.solve.particles.formulas import Function, indices_of, node_of
from numerics.solve.particles.march import March


def kept(march: March, paths: Paths, times: Sequence[int], replica: int) -> dict[str, Block]:
    """The paths that a replica of a march that has run through its steps sampled.

    Raises ValueError for a field that the theory does not have.
    """
    program = march.model.layout.theory.program
    expressions = paths.expressions(program)
    return {name: _block(march, name, e, paths, times, replica) for name, e in expressions.items()}


def _block(march: March, name: str, e: Expr, paths: Paths, times: Sequence[int], replica: int) -> Block:
    fields = {x for x in e.atoms(AppliedUndef) if march.model.is_random(x)}
    layers = sorted({n[1][0] for n in march.random if n[1]}) if ell in e.free_symbols else []
    layers = [k for k in layers if all(node_of(x.subs(ell, k)) in march.random for x in fields)]
    if not fields or (ell in e.free_symbols and not layers):
        raise ValueError(f"paths: {name} = {e} has no units in this theory")
    chosen = tuple(paths.chosen("layers", layers)) if layers else ()
    own = tuple(dict.fromkeys(i for x in sorted(fields, key=str) for i in indices_of(x) if i != ell))
    sizes, picked = [], []
    for i in own:
        size = march.model.sizes[i]
        here = paths.chosen("samples", range(size)) if dimension(i) == "sample" else list(range(size))
        sizes.append(size)
        picked.append(here)
    found = []
    for layer in chosen or (None,):
        f = Function(e if layer is None else e.subs(ell, layer))
        values = []
        for x in f.leaves:
            if not (isinstance(x, AppliedUndef) and march.model.is_random(x)):
                known = np.ravel(march.known(x, {}))  # one number, or one of each replica
                values.append(known[replica % len(known)])
                continue
            path = march.random[node_of(x)][replica, list(times)].swapaxes(0, 1)
            values.append(march.spread(path[None], indices_of(x), own)[0])
        whole = np.broadcast_to(f(*values), (*sizes, len(times), march.samples))
        for axis, here in enumerate(picked):
            whole = whole.take(here, axis=axis)
        found.append(np.moveaxis(whole, -2, 0))
    indices = tuple(
        (dimension(i), tuple(k + (dimension(i) != "sample") for k in here))
        for i, here in zip(own, picked, strict=True)
    )
    return Block(np.stack(found) if chosen else found[0].copy(), chosen, indices)
