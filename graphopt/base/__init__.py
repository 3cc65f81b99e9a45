"""What all else stands on: errors and their exit codes, files that appear whole, limits, element types, the cache.

It knows no graph and no model. Begin with `types`.
"""
