-- Give back what a lost vote left, serve nobody, and stand in line (refused.lua, note.lua and stand.lua stand before this).
-- KEYS[1] the lock   KEYS[2] its fence counter   KEYS[3] its line   KEYS[4] the node's roll
-- ARGV[1] token   ARGV[2] how to stand in line   ARGV[3] arrival   ARGV[4] ms for which somebody may have the lock elsewhere
-- ARGV[5] ms to keep an idle counter   ARGV[6] the mark of this request, echoed
-- replies {the counter, mark}
local holder, counter = redis.call('GET', KEYS[1]), redis.pcall('GET', KEYS[2])
if refused(counter) then return counter end
if ARGV[3] ~= '' then
  local longest = KEYS[4] and redis.call('HMGET', KEYS[4], 'longest')[1]
  local wrong = longest and note_place(KEYS[4], tonumber(longest), KEYS[3], ARGV[2])
                or stand(KEYS[3], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]))
  if wrong then return wrong end
end
if holder == ARGV[1] then
  local gone = redis.pcall('DEL', KEYS[1])
  if refused(gone) then
    redis.pcall('ZREM', KEYS[3], ARGV[2])
    return gone
  end
end
return {type(counter) == 'string' and counter or '0', ARGV[6]}
