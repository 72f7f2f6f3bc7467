-- Set what is left of a lease, if the token still holds it.
-- KEYS[1] the lock   KEYS[2] its fence counter   KEYS[3] (a quorum's node) the node's roll
-- ARGV[1] token   ARGV[2] ttl ms   ARGV[3] ms to keep an idle counter   ARGV[4] fence epoch, Unix ms
-- ARGV[5] the lease's fence: stored if the counter is lower (it was lost, or a quorum agreed on more)
-- ARGV[6] the mark of this request, echoed
-- replies {1, fence, mark} | {0, 1 if somebody else holds it, else 0, mark}
local ttl, mark = tonumber(ARGV[2]), ARGV[6]
local holder = redis.call('GET', KEYS[1])
if holder ~= ARGV[1] then
  return {0, holder and 1 or 0, mark}
end
local stored = tonumber(redis.call('GET', KEYS[2]) or '0')
if not (stored and stored >= 0 and stored < 9007199254740991) then
  return redis.error_reply('INTERLOCK the fence counter is not a number that can grow')
end
local fence = math.max(stored, tonumber(ARGV[5]))
local time = redis.call('TIME')
local clock = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) - tonumber(ARGV[4])
local keep = math.max(tonumber(ARGV[3]), 2 * ttl) + math.max(0, math.ceil(fence / 4096) - clock)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('SET', KEYS[2], string.format('%.0f', fence), 'PX', string.format('%.0f', keep))
if KEYS[3] then
  local roll = redis.call('HMGET', KEYS[3], 'longest', 'high')
  if roll[1] and ttl > tonumber(roll[1]) then redis.call('HSET', KEYS[3], 'longest', ARGV[2]) end
  if roll[2] and fence > tonumber(roll[2]) then redis.call('HSET', KEYS[3], 'high', string.format('%.0f', fence + 4194304)) end
end
return {1, fence, mark}
