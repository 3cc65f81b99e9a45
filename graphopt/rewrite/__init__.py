"""Rules and passes on a graph: find a match, ask the gate whether it is proved, build the right side, to a fixpoint.

Nothing here runs ONNX Runtime or reads a clock. Begin with `simplify`, then `matching` and `build`.
"""
