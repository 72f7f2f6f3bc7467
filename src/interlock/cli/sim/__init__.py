"""`interlock sim`: the locks in a simulated world where everything goes wrong, replayed from a seed.

Files: `arguments` (the parser and its help), `verb` (what it prints).
"""
