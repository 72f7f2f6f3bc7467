-- Behind claim.lua: say who has the name and, with a place, stand in line (stand.lua stands before this).
-- replies {0, holder's ms left (-1: no expiry), holder's public facts, clock in µs, the counter, mark}
--         | {0, ms, facts, clock, a hash of the holder, the counter, mark} by a quorum's node
local owner = ''
if string.sub(holder, 33, 33) == '~' then owner = string.sub(holder, 34) end -- the first 32 are its secret
local left = redis.call('PTTL', KEYS[1])
if line and ARGV[7] ~= '' then
  local wrong = roll and note_place(roll_key, tonumber(roll[3]), line, ARGV[6])
  if wrong then return wrong end
  wrong = stand(line, ARGV[6], ARGV[7], left, tonumber(ARGV[3]), tonumber(time[1]))
  if wrong then return wrong end
end
local counter = type(stored) == 'string' and stored or '0'
if roll then return {0, left, owner, micros, redis.sha1hex(holder), counter, mark} end
return {0, left, owner, micros, counter, mark}
