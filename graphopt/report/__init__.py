"""The report on a run: what was done to a model, as data, as a table and as JSON.

It decides nothing. Begin with `report`.
"""
