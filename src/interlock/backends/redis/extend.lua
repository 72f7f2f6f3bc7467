-- Set what is left of leases, each one if its token still holds it. None keeps another from being extended. refused.lua and
-- note.lua stand before this.
-- KEYS a lock and its fence counter for each lease, then the node's roll (which only a quorum's node has)
-- ARGV[1] ms to keep an idle counter   ARGV[2] fence epoch, Unix ms
-- ARGV then for each lease: token, ttl ms, its fence   ARGV the last: the mark of this request, echoed
-- replies {an integer for each lease, mark}
--         its fence | -1 gone | -2 somebody else holds it | -3 what is there is no lock
-- The fence is stored if the counter is lower (a quorum agreed on more), or lost, or spoilt: whoever holds the lock has the
-- highest fence that was ever granted, so it is the right thing to put there.
local time = redis.call('TIME')
local clock = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) - tonumber(ARGV[2])
local idle, roll_key, reply, writes, locks = tonumber(ARGV[1]), KEYS[#KEYS], {}, {}, {}
local roll = redis.pcall('HMGET', roll_key, 'longest', 'high', 'list', 'until')
local decided = {} -- counter → what will be stored there: a lease may be in the batch twice
local longest, high = tonumber(roll[1]), tonumber(roll[2])
local last, renewed = 0, nil -- when the short ones are over, and which it was
for n = 1, (#KEYS - 1) / 2 do
  local lock, counter = KEYS[2 * n - 1], KEYS[2 * n]
  local token, ttl, fence = ARGV[3 * n], tonumber(ARGV[3 * n + 1]), tonumber(ARGV[3 * n + 2])
  local holder = redis.pcall('GET', lock)
  if holder == token then
    local stored = decided[counter]
    if not stored then
      local found = redis.pcall('GET', counter)
      if refused(found) then return found end
      stored = tonumber(found)
    end
    local known = stored and stored >= fence and stored < 9007199254740991
    if known then fence = stored end
    decided[counter] = fence
    local keep = string.format('%.0f', math.max(idle, 2 * ttl) + math.max(0, math.ceil(fence / 4096) - clock))
    writes[#writes + 1] = {'PEXPIRE', counter, keep} -- first, whether it is there or not: a full server lets it, and then lets us go on
    if not known then writes[#writes + 1] = {'SET', counter, string.format('%.0f', fence), 'PX', keep} end
    locks[#locks + 1] = {'PEXPIRE', lock, ARGV[3 * n + 1], fence}
    if ttl >= last then last, renewed = ttl, lock end
    reply[n] = fence
  elseif refused(holder) then
    return holder -- not allowed to read, and nothing was written
  elseif type(holder) == 'table' then
    reply[n] = -3
  else
    reply[n] = holder and -2 or -1
  end
end
for _, words in ipairs(writes) do
  local done = redis.pcall(unpack(words))
  if refused(done) then return done end
end
for _, lease in ipairs(longest and high and locks or {}) do
  local lock, ttl, fence = lease[2], tonumber(lease[3]), lease[4]
  local wrong = index(roll_key, lock, ttl) or note(roll_key, longest, high, ttl, fence)
  if wrong then return wrong end
  if ttl <= 10000 then longest = math.max(longest, ttl) end
  if fence > high then high = fence + 4194304 end
end
if renewed and roll[3] == 'closed' then -- whoever changes the list of nodes waits until they are over
  last = math.max(clock + tonumber(ARGV[2]) + math.min(last, 10000), tonumber(roll[4]) or 0)
  local done = redis.pcall('HSET', roll_key, 'until', string.format('%.0f', last), 'renewed', renewed)
  if refused(done) then return done end
end
for _, lease in ipairs(locks) do -- last: none is extended by a request that the server refuses
  local done = redis.pcall(lease[1], lease[2], lease[3])
  if refused(done) then return done end
end
reply[#reply + 1] = ARGV[#ARGV]
return reply
