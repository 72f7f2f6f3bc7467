-- Part of pass_on.lua and hand_over.lua: the lock of somebody who holds it goes to the first in line who can be told.
-- KEYS[1] the lock   KEYS[2] its fence counter   KEYS[3] its line: `token inbox ms` by arrival   KEYS[4] a quorum's node: its roll
local clock = 0 -- the server's, in microseconds, once it was read
local function now()
  local time = redis.call('TIME')
  clock = tonumber(time[1]) * 1000000 + tonumber(time[2])
  return clock
end

-- Whether the node may serve: on a quorum's node only with its roll, since leases may be gone with that.
local noted
local function enrolled()
  if not KEYS[4] then return true end
  noted = redis.call('HMGET', KEYS[4], 'longest', 'high')
  return noted[1]
end

-- Keep the roll true: see claim.lua.
local function note(ttl, fence)
  if not noted then return end
  if ttl > tonumber(noted[1]) then redis.call('HSET', KEYS[4], 'longest', string.format('%.0f', ttl)) end
  if fence > tonumber(noted[2]) then redis.call('HSET', KEYS[4], 'high', string.format('%.0f', fence + 4194304)) end
end

-- The next fence; nil if somebody spoilt the counter. Usually one INCR, which leaves the counter's expiry alone: a counter that
-- is gone begins at 1, and one that must outlive a long lease is written anew, both as in claim.lua. A proposal is one more than
-- the fence that the holder has, so it needs no clock to be plausible.
local function mint(ttl, idle, epoch, proposal)
  local fence = redis.pcall('INCR', KEYS[2])
  if type(fence) ~= 'number' or fence < 1 or fence >= 9007199254740991 then return nil end
  local lost = fence < 4096
  if proposal >= 9007199254740991 then proposal = 0 end
  if lost or fence < proposal or 2 * ttl > idle then
    local ms = math.floor(now() / 1000) - epoch
    fence = math.max(fence, proposal)
    if lost and ms < 2199023255000 then fence = math.max(fence, ms * 4096) end -- else not: nodes would not agree
    local keep = math.max(idle, 2 * ttl) + math.max(0, math.ceil(fence / 4096) - ms)
    redis.call('SET', KEYS[2], string.format('%.0f', fence), 'PX', string.format('%.0f', keep))
  end
  return fence
end

-- Serve the first who can be told: only those who came earlier than `before`, if that is given, and at that moment only those
-- who stand before `own`. Or only those who came earlier than `stands`, which is in line, last of them, and leaves it when nobody
-- else is left. `popped` is the first, if it has been taken out. `at` is a time that the server's clock has reached, or 0. Answers
-- the token that has the lock now, its ttl and its fence; or nothing.
local function serve(before, own, fence, at, idle, epoch, proposal, stands, popped)
  for _ = 1, 128 do -- so many dead ones at once; more are left to the next release
    if before and not stands then
      local first = redis.pcall('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
      local arrival = tonumber(first[2])
      if not arrival or arrival > before or (arrival == before and first[1] >= own) then return end
    end
    if not popped then popped = redis.pcall('ZPOPMIN', KEYS[3]) end
    local member, arrived = popped[1], popped[2]
    popped = nil
    if not member or member == stands then return end
    if stands and tonumber(arrived) >= before then -- at the same moment
      redis.call('ZADD', KEYS[3], arrived, member)
      break
    end
    local token, inbox, ms = string.match(member, '^(.*) (%S+) (%d+)$')
    if token then
      fence = fence or mint(tonumber(ms), idle, epoch, proposal)
      if not fence then return end
      if at == 0 then at = now() end
      local message = string.format('%.0f\n%s\n%.0f\n%s\n%s', fence, ms, at, token, KEYS[1])
      local told = redis.pcall('PUBLISH', inbox, message)
      if type(told) == 'number' and told > 0 then
        redis.call('SET', KEYS[1], token, 'PX', ms)
        note(tonumber(ms), fence)
        return token, tonumber(ms), fence
      end
    end
  end
  if stands then redis.pcall('ZREM', KEYS[3], stands) end
end
