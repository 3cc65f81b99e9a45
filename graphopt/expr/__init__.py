"""The algebra that meanings are written in: integers with unknowns, formulas over them, and symbolic tensors.

`integers` has polynomials, quotients and formulas; `expressions` real numbers made of elements of tensors;
`symbolic_tensors` tensors as functions of indices. `dims` are the sizes that models name, `dim_translation` leads from
these to integers and back. `lemmas` are the named facts on real functions. All of it lives in a `base.session`.
Begin with `integers`.
"""
