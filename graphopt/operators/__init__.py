"""What operators are: a denotation of each, in the file of its kind, and what is read off it.

Proofs read denotations over what an instance of a rule has (`verifier/node.py`), inference over the sizes that a model
names (`known`). It reads graphs and changes none; it knows no rule and no solver. Begin with `semantics`, then `infer`.
"""
