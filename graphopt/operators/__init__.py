"""What operators do: the types, shapes and known contents of their outputs, and their values on constants.

It reads graphs and changes none; it knows no rule. Begin with `infer`.
"""
