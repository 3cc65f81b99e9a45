"""Training graphs: the gradients of a loss, by the chain rule on the graph, and the steps of optimizers.

The gradients of operators are in `operators/gradient_table.py`; their nodes are built as the right sides of rules are.
Begin with `training_graph`, then `backward`.
"""
