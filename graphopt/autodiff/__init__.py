"""Training graphs: the gradients of a loss, by the chain rule on the graph, and the steps of optimizers.

What the gradient of an operator is stands in `operators/gradients.py`; the nodes are built as the right sides of rules
are. Begin with `training_graph`, then `backward`.
"""
