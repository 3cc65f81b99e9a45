"""Which rewrites pay: candidates, what they cost, races against the original, and what is kept for the next run.

It takes rules as they come, proved and allowed; what they mean it does not know. Begin with `model_tuner`; the numbers
that decide are in `policy`, and when a search stops, and why, in `stopping`.
"""
