"""Models on several devices: what the devices are, how a model is split among them, and what each split costs.

Splits are rules of `rules/tensor_parallel.py`, or cuts between nodes. Begin with `devices`, then `plan`.
"""
