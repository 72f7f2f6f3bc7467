-- Compare and delete.
-- KEYS[1] the lock   ARGV[1] token
-- replies 1 the token held it | 0 it did not
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
