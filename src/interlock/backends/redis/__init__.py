"""Redis and Valkey: one node. Scripts in Lua, connections by redis-py, everything between in these files."""
