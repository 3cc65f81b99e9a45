"""Knows how rules are found that no one wrote: terms are told apart by their values, and equal ones are proved.

Must not know what operators compute, beside how those that are tried by default are applied (`worlds`).
Begin with `run`.
"""
