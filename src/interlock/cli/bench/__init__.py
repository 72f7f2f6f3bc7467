"""`interlock bench`: how far from the floor of your own network a lock is. `bench/` measures with the same means."""
