"""The meanings of operators: a denotation of each, in the file of its kind, and what follows from it.

Proofs evaluate denotations at an instance of a rule (`verifier/rule_node.py`), inference at the sizes that a model
names (`symbolic_shapes`). The room reads graphs and changes none; it knows no rule and no solver. Begin with
`semantics`, then `inference`.
"""
