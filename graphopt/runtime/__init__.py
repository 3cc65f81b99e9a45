"""ONNX Runtime: the sessions, what they are fed, how long they take, which kernels there are.

It is told what to run, and neither rewrites nor judges. Begin with `session_setting`, then `measure`.
"""
