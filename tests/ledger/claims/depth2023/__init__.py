"""The printed right-hand sides as SymPy expressions."""
