"""The language of rules: terms, rules, scalar functions, what a proof says and covers, and where rules come from.

It knows no graph: a rule is data, and `graphopt.verifier` reads it as the compiler does. Begin with `rule`.
"""
