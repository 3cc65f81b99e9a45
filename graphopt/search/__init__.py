"""The search for rewrites that pay: candidates, their costs, races against the original, results kept for later runs.

It applies rules that were proved and admitted elsewhere, and knows nothing of their meaning. Begin with `model_tuner`.
The numbers that it decides by are in `policy`, its stopping rules in `stopping`.
"""
