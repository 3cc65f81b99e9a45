"""The command line: options, what is typed after them, the terminal, the demo, the printed catalogue of rules.

It holds words and little work: what it does lies in the other rooms, and most of it can be had from Python. Begin with
`main`.
"""
