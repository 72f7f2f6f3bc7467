-- Compare and delete, or leave the line. If somebody stands there, pass_on.lua goes on from here.
-- KEYS[1] the lock   KEYS[2] its fence counter   KEYS[3] its line   KEYS[4] a quorum's node: its roll
-- ARGV[1] token   ARGV[2] how it may stand in line, or ''   ARGV[3] a time that the server's clock has reached, µs, or 0
-- ARGV[4] ms to keep an idle counter   ARGV[5] fence epoch, Unix ms   ARGV[6] a fence for the next if it is higher, or 0
-- ARGV[7] the mark of this request, echoed
-- replies {1, the server's clock in µs or 0 if it was not read, mark} the token held it | {0, 0, mark} it did not
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  if ARGV[2] ~= '' then redis.pcall('ZREM', KEYS[3], ARGV[2]) end
  return {0, 0, ARGV[7]}
end
local first = redis.pcall('ZPOPMIN', KEYS[3]) -- no error if the key is not a line: then nobody is in it
if not first[1] then
  redis.call('DEL', KEYS[1])
  return {1, 0, ARGV[7]}
end
