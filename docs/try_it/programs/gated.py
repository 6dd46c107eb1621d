# Gated network: linear layers, and a top layer that gates itself through a frozen matrix
from sympy import Function, Symbol, tanh
from derive.program import *

layer = Population("layer")
inputs = Population("input", given=True)
x, w = GivenVector("x", inputs, "K_x"), GaussianVector("w", layer.at(L))
h, q = (Field(name, layer, layered=True) for name in "hq")
W0 = GaussianMatrix("W0", layer.at(1), inputs)
W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell),
                   index=IndexRange(ell, 1, L - 1))
V = GaussianMatrix("V", layer.at(L), layer.at(L))
f, y, lam = Function("f"), Function("y"), Symbol("lambda", positive=True)

net = Network("linear network that gates itself", (h, q), {
    h(1, mu, t): W0 @ x(mu),
    h(ell + 1, mu, t): W(ell) @ h(ell, mu, t),
    q(L, mu, t): V @ h(L, mu, t),
    f(mu, t): Mean(w.symbol * (1 + tanh(q(L, mu, t))) * h(L, mu, t)) / gamma0,
}, weights=(W0, W, w), frozen=(V,), given=(x,))

loss = (y(mu) - f(mu, t)) ** 2 / 2
program = net.train(loss, GradientDescent(eta, decay=eta * lam))
