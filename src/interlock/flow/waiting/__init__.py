"""Waiting for a lock: the queue of this client, the store's line, hand-overs and announcements."""
