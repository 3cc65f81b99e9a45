"""The report on a run: what was done to a model, as data, as a table, as JSON and as a page.

It decides nothing. Begin with `report`; for the page with `page`, for what its scripts draw with `graph_data`.
"""
