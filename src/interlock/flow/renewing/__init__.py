"""Keeping leases: the keeper renews them, and tells their holders when it cannot."""
