"""Discovery of rules that no one wrote: terms are told apart by their values, and equal ones are proved.

It must not know what operators compute, only how those are applied that are tried by default (`worlds`). Begin with
`run`.
"""
