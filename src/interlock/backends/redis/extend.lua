-- Set what is left of leases, each one if its token still holds it. None keeps another from being extended.
-- KEYS a lock and its fence counter for each lease, then the node's roll (which only a quorum's node has)
-- ARGV[1] ms to keep an idle counter   ARGV[2] fence epoch, Unix ms
-- ARGV then for each lease: token, ttl ms, its fence   ARGV the last: the mark of this request, echoed
-- replies {an integer for each lease, the server's clock in µs, mark}
--         its fence | -1 gone | -2 somebody else holds it | -3 what is there is no lock
-- The fence is stored if the counter is lower (a quorum agreed on more), or lost, or spoilt: whoever holds the lock has the
-- highest fence that was ever granted, so it is the right thing to put there.
local time = redis.call('TIME')
local micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
local clock = math.floor(micros / 1000) - tonumber(ARGV[2])
local idle, longest, high = tonumber(ARGV[1]), 0, 0
local reply = {}
for n = 1, (#KEYS - 1) / 2 do
  local lock, counter = KEYS[2 * n - 1], KEYS[2 * n]
  local token, ttl, fence = ARGV[3 * n], tonumber(ARGV[3 * n + 1]), tonumber(ARGV[3 * n + 2])
  local holder = redis.pcall('GET', lock)
  if holder == token then
    redis.call('PEXPIRE', lock, ARGV[3 * n + 1]) -- first: a full server lets it, and then lets the script go on
    local stored = tonumber(redis.pcall('GET', counter))
    local known = stored and stored >= fence and stored < 9007199254740991
    if known then fence = stored end
    local keep = string.format('%.0f', math.max(idle, 2 * ttl) + math.max(0, math.ceil(fence / 4096) - clock))
    if known then redis.call('PEXPIRE', counter, keep)
    else redis.call('SET', counter, string.format('%.0f', fence), 'PX', keep) end
    longest, high = math.max(longest, ttl), math.max(high, fence)
    reply[n] = fence
  elseif type(holder) ~= 'table' then
    reply[n] = holder and -2 or -1
  elseif string.find(holder.err, 'WRONGTYPE', 1, true) then
    reply[n] = -3
  else
    return holder -- not allowed to read: the same for all of them, and nothing was written
  end
end
local roll = redis.pcall('HMGET', KEYS[#KEYS], 'longest', 'high')
local noted_longest, noted_high = tonumber(roll[1]), tonumber(roll[2])
if noted_longest and noted_high and (longest > noted_longest or high > noted_high) then
  if high > noted_high then noted_high = high + 4194304 end -- coarsely, about once a second, and always above what is stored
  redis.call('HSET', KEYS[#KEYS], 'longest', string.format('%.0f', math.max(longest, noted_longest)),
             'high', string.format('%.0f', noted_high))
end
reply[#reply + 1] = micros
reply[#reply + 1] = ARGV[#ARGV]
return reply
