-- Compare and delete.
-- KEYS[1] the lock   ARGV[1] token   ARGV[2] the mark of this request, echoed
-- replies {1, mark} the token held it | {0, mark} it did not
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return {redis.call('DEL', KEYS[1]), ARGV[2]}
end
return {0, ARGV[2]}
