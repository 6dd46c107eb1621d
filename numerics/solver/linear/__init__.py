"""Linear theories, solved to rounding in steps: reduced, lowered to rows of kernels, marched once, labelled.

``solve`` is the method; ``reduction`` writes a theory as rows, ``plan`` orders what one step computes,
``operations`` writes it as a list, ``steps`` runs the list, ``march`` runs all steps, ``variables`` turns the
arrays of a march into the variables of a result.
"""
