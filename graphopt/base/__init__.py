"""The ground that all else stands on: errors and their exit codes, atomic files, limits, element types, the cache.

It knows no graph and no model. Begin with `dtype`.
"""
