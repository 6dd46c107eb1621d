"""Linear theories, solved to rounding in steps: reduced, lowered to rows of kernels, marched, and labelled.

``method`` is the method, ``solve`` its solution; ``reduction`` writes a theory as rows, ``plan`` orders the
quantities of one step, ``operations`` writes them as a list, ``steps`` runs the list, ``march`` runs all
steps, ``variables`` turns the arrays of a march into the variables of a result.
"""
