"""`interlock sim`: the locks in a simulated world where everything goes wrong, replayed from a seed.

Files: `arguments` (the parser and its help), `many` (many histories, in several processes), `verb` (what it prints).
"""
