"""Models on several devices: what the devices are, how a model is split among them, and what each split costs.

Operators are split by the rules of `rules/tensor_parallel.py`, and graphs by cuts between nodes. Begin with `devices`,
then `plan` and `partitioning`.
"""
