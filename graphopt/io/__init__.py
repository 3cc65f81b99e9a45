"""Models in files: `ModelProto` to graph and back, weights beside the model, opsets, the refusal of what is not legal.

The only room that touches model files; it knows no rule. Begin with `onnx_io`.
"""
