# Residual network: branches of strength beta, trained with momentum tau
from sympy import Function, Symbol
from derive.program import *

layer = Population("layer")
inputs = Population("input", given=True)
x, w = GivenVector("x", inputs, "K_x"), GaussianVector("w", layer.at(L))
h = Field("h", layer, layered=True)
W0 = GaussianMatrix("W0", layer.at(1), inputs)
W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell),
                   index=IndexRange(ell, 1, L - 1))
phi, f, y = Function("phi"), Function("f"), Function("y")
beta, tau = Symbol("beta"), Symbol("tau", positive=True)

net = Network("residual network", (h,), {
    h(1, mu, t): W0 @ x(mu),
    h(ell + 1, mu, t): h(ell, mu, t) + beta * (W(ell) @ phi(h(ell, mu, t))),
    f(mu, t): Mean(w.symbol * phi(h(L, mu, t))) / gamma0,
}, weights=(W0, W, w), given=(x,))

loss = (y(mu) - f(mu, t)) ** 2 / 2
program = net.train(loss, Momentum(eta, tau))
