"""The language of rules: terms, rules, definitions of operators, scalar functions, what a proof says and covers.

It finds nothing in a graph: a rule is data, and `graphopt.verifier` reads it as the compiler does. Begin with `rule`.
"""
