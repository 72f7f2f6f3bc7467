"""Stores behind one port. `port` is the contract, `registry` finds a store by the scheme of its URL."""
