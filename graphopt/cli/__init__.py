"""The command line: options, what is typed after them, the terminal, the demo, the printed catalogue of rules.

Everything it does can be had from Python: it holds words and no work. Begin with `main`.
"""
