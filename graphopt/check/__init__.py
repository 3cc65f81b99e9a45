"""Do two models agree? Both are run as written on the same inputs; if they differ, which rewrite is to blame?

It never changes a model, and does not trust the compiler's own knowledge of operators. Begin with `compare`.
"""
