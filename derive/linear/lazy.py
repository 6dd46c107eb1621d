"""Lazy limit ``gamma0 = 0`` of a linear network of any depth, with responses that do not vanish.

At gamma0 = 0 the correlation functions of neighbouring layers are equal, and each response function equals a
kernel: ``A[ell] = C[ell]`` and ``B[ell - 1] = D[ell]``. The definitions of the kernels are then recursions
over layers, which are solved here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import Add, Derivative, Eq, Expr, Indexed, Mul, Pow, S, Symbol, factor, transpose
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.sums import over, rewritten, substitute
from derive.calculus.symbols import ell, gamma0, s, t
from derive.errors import NotApplicable
from derive.linear.closure import LinearClosure, linear_closure
from derive.linear.operators import Kernel, resolvents
from derive.linear.projection import tidy_sums
from derive.program import Program
from derive.program.rules import accumulate
from derive.show.latex import aligned_latex
from derive.show.summary import Summarised
from derive.theory import Theory


@dataclass(frozen=True, repr=False)
class Lazy(Summarised):
    """Linear theory at ``gamma0 = 0``.

    ``fields`` are the fields, which equal their Gaussian sources; ``kernels`` are the kernels C and D of each
    layer, which equal the responses (linear2025 F.4); ``output`` is the output as a memory of past errors.
    ``error`` is the equation of the error: its change in a step, or its time derivative in a flow. In steps
    with an error that is not linear in the output, it gives the error after the step as a function of the
    changed output. With weight decay or momentum it gives the error itself in terms of past errors.
    """

    closure: LinearClosure
    fields: tuple[Eq, ...]
    kernels: tuple[Eq, ...]
    output: Eq
    error: Eq

    def _repr_latex_(self) -> str:
        return aligned_latex((*self.kernels, self.output, self.error), self.closure.theory)


def lazy(theory: Theory | Program) -> Lazy:
    """Return the limit ``gamma0 -> 0`` of a linear theory of one layer or of a family of layers.

    Parameters
    ----------
    theory : Theory or Program
        A linear theory, or a program of a linear network.

    Returns
    -------
    Lazy
        Kernels, output and the equation of the error.

    Raises
    ------
    NotApplicable
        If ``linear_closure`` refuses the theory, if a correlation at gamma0 = 0 changes from layer to layer,
        if the recursions over layers are not first-order and uniform, or if the network has several outputs.

    Examples
    --------
    >>> from derive import mean_field, mlp
    >>> ends = lazy(mean_field(mlp(rule="flow")))
    >>> print(ends.error.rhs)
    -(L + 1)*Sum(Delta(alpha, t)*K_x(mu, alpha), (alpha, 1, P))
    >>> print(*(e.rhs for e in ends.kernels))
    ell*Sum(Delta(alpha, s)*K_x(mu, alpha), (alpha, 1, P)) (L - ell + 1)*Delta(alpha, s)
    """
    return _Lazy(linear_closure(theory)).limit()


def at_resolvents(e: Expr) -> Expr:
    """Return an operator expression at leading order in gamma0: inverses ``(1 - M)^-1`` become 1.

    M is of order gamma0^2, so that no term of order gamma0 is lost.
    """
    return e.xreplace({x: Pow(x.base.subs(gamma0, 0), -1) for x in resolvents(e)})


def at_zero(e: Expr) -> Expr:
    """Return an operator expression at gamma0 = 0, expanded."""
    return at_resolvents(e).expand().subs(gamma0, 0)


class _Lazy:
    """Derivation of the lazy limit of a linear theory.

    Responses at gamma0 = 0 obey recursions over layers, which are read from the closure and solved.
    """

    def __init__(self, closure: LinearClosure) -> None:
        """Read correlation and response functions at gamma0 = 0 from the closure of a linear theory.

        Raises NotApplicable unless each correlation function equals that of the neighbouring layer, of the
        input or of the readout.
        """
        self.closure, self.program = closure, closure.theory.program
        names = {str(e.lhs.args[0]) for e in closure.covariances}
        self.known = {k.operator: k for k in closure.kernels}
        ends = {e.lhs for e in closure.base}
        self.correlations: dict[str, Kernel] = {}
        for e in closure.covariances:
            value, name = at_zero(e.rhs), str(e.lhs.args[0])
            if isinstance(value, Indexed) and value.args[0] == e.lhs.args[0] and closure.layers is not None:
                self.correlations[name] = next(
                    k for x, k in self.known.items() if x in ends and k.name == name
                )
            elif value not in self.known:
                raise NotApplicable(
                    f"the lazy limit is not derived: the correlation {e.lhs} is {value} at gamma0 = 0; it "
                    "must be the correlation of the neighbouring layer, of the input or of the readout, "
                    "without a factor"
                )
            else:
                kernel = self.known[value]
                if any(str(x.func) in names for x in kernel.definition.atoms(AppliedUndef)):
                    raise NotApplicable(
                        f"the lazy limit is not derived: the correlation {e.lhs} is {kernel.definition} at "
                        "gamma0 = 0 and changes from layer to layer; it must be the same in all layers. "
                        "Use weights of initial variance 1 without decay and noise, or one hidden layer"
                    )
                self.correlations[name] = kernel
        self.responses = {str(e.lhs.args[0]): (e.lhs, at_zero(e.rhs)) for e in closure.responses}

    def limit(self) -> Lazy:
        """Return fields, kernels, output and error of the theory at ``gamma0 = 0``."""
        ends = {e.lhs for e in self.closure.base}
        kernels = {
            k.name: self.solved(k) for k in self.closure.kernels if k.causal and k.operator not in ends
        }
        output = self.output(kernels)
        return Lazy(
            closure=self.closure,
            fields=tuple(Eq(e.lhs, at_zero(e.rhs), evaluate=False) for e in self.closure.fields),
            kernels=tuple(Eq(k.entry, k.definition, evaluate=False) for k in kernels.values()),
            output=output,
            error=self.error(output),
        )

    def solved(self, k: Kernel) -> Kernel:
        """Return the kernel ``k`` of a layer, which equals a response, in closed form.

        Its definition is the recursion ``K(ell) = K(ell + step) + increment``, with step 1 or -1, that starts
        from zero at an end of the network; the solution is a number of layers times the increment. Without a
        recursion it is the increment. Raises NotApplicable if the increment depends on the layer, and for
        another recursion.
        """
        increment, step = S.Zero, S.Zero
        for x in Add.make_args(k.definition):
            if x.is_Function and str(x.func) in self.responses:
                name, value = self.responses[str(x.func)]
                if not isinstance(value, Indexed) or value.args[0] != k.operator.args[0]:
                    raise NotApplicable(
                        f"the lazy limit is not derived: the response {name} is {value} at gamma0 = 0; in "
                        f"a recursion over layers it must be the kernel {k.operator.args[0]} of one layer, "
                        "without a factor"
                    )
                step += value.args[1] - name.args[1] + x.args[0] - ell
            else:
                increment += self.started(x)
        if increment.has(ell):
            raise NotApplicable(
                f"the lazy limit is not derived: at gamma0 = 0 the kernel {k.operator} contains "
                f"{increment}, which depends on the layer ell; this part must be the same in all layers"
            )
        count = factor(self.count(step)) if step != 0 else S.One
        return replace(k, definition=count * tidy_sums(increment))

    def started(self, e: Expr) -> Expr:
        """Return an expression with known values in place of its correlation functions.

        At gamma0 = 0 a correlation function is the same in all layers. It equals its value just beyond the
        first or the last layer, such as the kernel of the inputs, which is known.
        """

        def end(x: AppliedUndef) -> Expr:
            """Return the known value of the correlation function ``x`` beyond an end, at the indices of x."""
            kernel = self.correlations[str(x.func)]
            given = kernel.entry.args[1:] if isinstance(kernel.operator, Indexed) else kernel.entry.args
            return substitute(kernel.definition, dict(zip(given, x.args[1:], strict=False)))

        return rewritten(e, self.correlations, end)

    def count(self, step: Expr) -> Expr:
        """Return the number of layers from layer ell to the end of the network where a recursion starts.

        Layer ell and the layer at the end are counted. The recursion is ``c(ell) = c(ell + step) + 1`` with
        ``step`` 1 (from the last layer down) or -1 (from the first layer up). Raises NotApplicable for
        another step, and for a closure without a family of layers.
        """
        layers = self.closure.layers
        if step not in (1, -1) or layers is None:
            raise NotApplicable(
                "the lazy limit is not derived: a recursion over layers must lead from the layer ell of a "
                f"family of layers to the layer ell + 1 or ell - 1, and this recursion has the step {step}"
            )
        return ell - layers.lower + 1 if step == -1 else layers.upper - ell + 1

    def output(self, kernels: dict[str, Kernel]) -> Eq:
        """Return the equation of the output at leading order in gamma0, a sum over past errors.

        ``kernels`` maps the names of kernels to their closed forms.
        """
        scalar = next(e for e in self.closure.theory.scalars if e.rhs.has(Average))
        cross = self.closure.outputs[0]
        factor_in_front = scalar.rhs / next(iter(scalar.rhs.atoms(Average)))
        word = (factor_in_front * at_resolvents(cross.rhs)).expand().subs(gamma0, 0)
        table = dict(self.known)
        for x in word.atoms(Indexed):
            name = str(x.args[0])
            if (k := kernels.get(name, self.correlations.get(name))) is not None:
                table[x] = replace(k, operator=x, definition=k.definition.subs(ell, x.args[1]))
        rows = tuple(i for i in scalar.lhs.args if i != t)
        past = Add(*[self.past(x, table, rows) for x in Add.make_args(word)])
        return Eq(scalar.lhs, accumulate(self.program.rule, factor(tidy_sums(past)), s, t), evaluate=False)

    @staticmethod
    def past(word: Expr, table: dict[Expr, Kernel], rows: tuple[Expr, ...]) -> Expr:
        """Return the function of s whose sum over past times s is the entry (t, t) of a product of operators.

        The product, ``word``, is a number times ``K X`` or ``X K^T`` with a causal kernel K. The result is
        the product of the entries of the two kernels, at (t, s) and (s, t), summed over samples. ``table``
        maps the operators to kernels, and ``rows`` are the sample indices of the entry. Raises NotApplicable
        for another product, and if the first kernel has another number of indices than ``rows``, as for
        several outputs.
        """
        numbers, letters = word.args_cnc()
        turned = [x.func == transpose for x in letters]
        kernels = [table[x.args[0] if flip else x] for x, flip in zip(letters, turned, strict=True)]
        if len(kernels) != 2 or turned[0] or not kernels[int(turned[1])].causal:
            raise NotApplicable(
                f"the lazy limit is not derived: the product of operators {word} must have the form K X or "
                "X K^T, with two kernels K and X, of which K is causal"
            )
        left, right = kernels
        if len(left.rows) != len(rows):
            raise NotApplicable(
                f"the lazy limit is not derived: the output has the indices {rows} beside the time, and "
                f"the kernel {letters[0]} has the indices {tuple(r.index for r in left.rows)} at its first "
                "time; both must have the same number of indices, as for one output and samples without "
                "positions"
            )
        names = tuple(Symbol(f"{r.index.name}_1", **r.index.assumptions0) for r in left.cols)
        other = right.at((), names, t, s) if turned[1] else right.at(names, (), s, t)
        ranges = [(n, r.lower, r.upper) for n, r in zip(names, left.cols, strict=True)]
        return Mul(*numbers) * over(left.at(rows, names, t, s) * other, ranges)

    def error(self, output: Eq) -> Eq:
        """Return the equation of motion of the error: its change in a step, or its time derivative.

        It is the derivative of the error by the output times the change of the ``output``. In steps this is
        exact only if the error is linear in the output; for another error its value after the step is given,
        as a function of the output plus its change. If the weight of past errors in the output depends on the
        present time, as with weight decay or momentum, the error itself is given in terms of past errors.
        """
        delta = next(e for e in self.closure.theory.scalars if e.lhs != output.lhs)
        slope, memory = delta.rhs.diff(output.lhs), output.rhs
        if memory.function.has(t):
            return Eq(delta.lhs, delta.rhs.xreplace({output.lhs: memory}), evaluate=False)
        change = slope * memory.function.xreplace({s: t})
        if self.program.rule.discrete:
            after = delta.lhs.xreplace({t: t + 1})
            if slope.has(output.lhs):
                moved = output.lhs + memory.function.xreplace({s: t})
                return Eq(after, delta.rhs.xreplace({output.lhs: moved}), evaluate=False)
            return Eq(after - delta.lhs, change, evaluate=False)
        return Eq(Derivative(delta.lhs, t), change, evaluate=False)
