"""Proves rules for all tensor sizes; the only place that imports z3. Begin with `prove`."""
