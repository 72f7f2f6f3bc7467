"""`interlock quorum`: the list of nodes of a quorum, shown and changed. See docs/quorum.md."""
