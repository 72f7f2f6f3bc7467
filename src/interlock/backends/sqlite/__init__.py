"""The embedded store: one SQLite file, shared by the processes of one machine. The default when nothing is configured."""
