"""What goes wrong around a lease: stores that fall silent, processes that are stopped, forked, cancelled and shut down.

Each test runs on real stores, with a reduced number of trials; INTERLOCK_CHAOS=10 multiplies them.
"""
