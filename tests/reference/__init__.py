"""Independent implementations that the engine's solver is compared with.

Nothing here imports ``derive`` or ``numerics``: the equations are typed in from the papers (with their
source) and solved by other methods than the solver's own, so a mistake has to be made twice to pass.
"""
