-- Compare and delete, or leave the line. If somebody stands there, pass_on.lua goes on from here. refused.lua stands before this.
-- KEYS[1] the lock   KEYS[2] its fence counter   KEYS[3] its line   KEYS[4] a quorum's node: its roll
-- ARGV[1] token   ARGV[2] how it may stand in line, or ''
-- ARGV[3] ms to keep an idle counter   ARGV[4] fence epoch, Unix ms   ARGV[5] a fence for the next if it is higher, or 0
-- on a quorum's node then a hash of the list of its nodes   ARGV the last: the mark of this request, echoed
-- replies {1, 1 if it was not allowed to serve those in line, else 0, mark} the token held it | {0, 0, mark} it did not
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  if ARGV[2] ~= '' then
    local left = redis.pcall('ZREM', KEYS[3], ARGV[2])
    if refused(left) then return left end
  end
  return {0, 0, ARGV[#ARGV]}
end
local first = redis.pcall('ZPOPMIN', KEYS[3]) -- no error if the key is not a line: then nobody is in it
if not first[1] then
  redis.call('DEL', KEYS[1])
  return {1, refused(first) and 1 or 0, ARGV[#ARGV]}
end
