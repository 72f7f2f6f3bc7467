"""The rules of the house, enforced. One file a rule, or a few that belong together.

The source is parsed, not imported, except where live objects are compared (public names, faces). Each rule is a function from
a small piece of source to a list of complaints, so that each file can show that its rules are able to fail.
After a wanted change of the public names: `python -m tests.rules --write`.
"""
