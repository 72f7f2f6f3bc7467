-- Part of claim.lua, serve.lua and extend.lua on a quorum's node: keep its roll true. refused.lua stands before this. Both answer the
-- server's error if there is one, and nothing else.

local function spoilt_roll() -- somebody put something of another type under its keys
  return redis.error_reply('INTERLOCK ROLL is no hash, or what stands beside it no sorted set')
end

-- A lease of at most ten seconds is covered by the longest of them. The names of longer ones are kept beside the roll, each with when it
-- ends at the latest, so that a node that comes back without its memory need not wait for one that was released long ago. Each time two
-- that are over are forgotten, and two others looked at, and forgotten if nobody holds them any more: so there are never many more than
-- are held. A user may not see the names of another: those are left alone. This comes before the lock is written.
local function index(roll_key, name, ttl)
  if ttl <= 10000 then return end
  local wrong, long, twice = nil, roll_key .. ':long', string.format('%.0f', 2 * ttl)
  local function ask(...)
    local reply = not wrong and redis.pcall(...)
    if type(reply) == 'table' and reply.err then wrong = refused(reply) or spoilt_roll() end
    return reply
  end
  local clock, left = ask('TIME'), ask('PTTL', long)
  local oldest, others = ask('ZRANGE', long, 0, 1, 'WITHSCORES'), ask('ZRANDMEMBER', long, 2)
  if wrong then return wrong end
  clock = clock[1] * 1000 + math.floor(clock[2] / 1000)
  if left < 2 * ttl then ask('PEXPIRE', long, twice) end -- whether it is there or not: so it may be done below
  for i = 1, #oldest, 2 do
    if tonumber(oldest[i + 1]) < clock then ask('ZREM', long, oldest[i]) end
  end
  for _, other in ipairs(others) do
    if other ~= name and redis.pcall('EXISTS', other) == 0 then ask('ZREM', long, other) end
  end
  ask('ZADD', long, 'GT', string.format('%.0f', clock + ttl), name) -- whoever is refused must not shorten what somebody else holds
  if not wrong and left < 0 then ask('PEXPIRE', long, twice) end
  return wrong
end

-- Somebody is about to stand in line: what it may be served with counts as a lease from now on, since a node that serves it may
-- forget that, and another one serve it afterwards. For more than ten seconds the line itself is kept with the names of long leases.
local function note_place(roll_key, longest, line, member)
  local ms = tonumber(string.match(member, ' (%d+)$'))
  if not ms or ms <= (longest or 0) then return end
  if ms > 10000 then return index(roll_key, line, ms) end
  local noted = redis.pcall('HSET', roll_key, 'longest', string.format('%.0f', ms))
  if refused(noted) then return noted end
end

local function note(roll_key, longest, high, ttl, fence)
  local noted
  if ttl > (longest or 0) and ttl <= 10000 then noted = redis.pcall('HSET', roll_key, 'longest', string.format('%.0f', ttl)) end
  if refused(noted) then return noted end
  -- Noted coarsely, about once a second, and always above what is stored.
  if fence > (high or 0) then noted = redis.pcall('HSET', roll_key, 'high', string.format('%.0f', fence + 4194304)) end
  if refused(noted) then return noted end
end

