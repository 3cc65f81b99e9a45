"""The graph that is rewritten: a networkx graph of frozen nodes, constant tensors, patches, and how they are made.

It knows what the schemas say of an operator, and nothing of files, rules or ONNX Runtime. Begin with `graph`.
"""
