-- Part of pass_on.lua and hand_over.lua: the lock of somebody who holds it goes to the first in line who can be told.
-- KEYS[1] the lock   KEYS[2] its fence counter   KEYS[3] its line: `token inbox ms` by arrival   KEYS[4] a quorum's node: its roll
local hindered -- what the server refused, if it did: nobody can be served then
local function try(...)
  local reply = redis.pcall(...)
  if refused(reply) then hindered = reply end
  return reply
end

local function now() -- the server's clock in microseconds; 0 if it may not be read
  local time = try('TIME')
  return time.err and 0 or tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- Whether the node may serve: on a quorum's node only with a good roll, as in claim.lua.
local noted
local function enrolled()
  if not KEYS[4] then return true end
  noted = try('HMGET', KEYS[4], 'history', 'list', 'longest', 'high', 'seed')
  if not noted[1] or noted[2] ~= ARGV[#ARGV - 1] then return false end
  local text = try('INFO', 'replication')
  return type(text) == 'string' and string.find(text, 'master_replid:' .. noted[1], 1, true)
end

local function noting(ttl, fence) -- before the lock is written
  if not noted then return end
  hindered = index(KEYS[4], KEYS[1], ttl) or note(KEYS[4], tonumber(noted[3]), tonumber(noted[4]), ttl, fence) or hindered
end

-- The next fence; nil if the server refuses, or somebody spoilt the counter. Usually one INCR, which leaves the counter's expiry
-- alone: a counter that is gone begins at 1, and one that must outlive a long lease is written anew, both as in claim.lua. A
-- proposal is one more than the fence that the holder has, so it needs no clock to be plausible.
local function mint(ttl, idle, epoch, proposal)
  local fence = try('INCR', KEYS[2])
  if type(fence) ~= 'number' or fence < 1 or fence >= 9007199254740991 then return nil end
  local lost, seed = fence < 4096, noted and tonumber(noted[5]) or 0
  if proposal >= 9007199254740991 then proposal = 0 end
  if fence <= seed then proposal = math.max(proposal, seed + 1) end
  if lost or fence < proposal or 2 * ttl > idle then
    local ms = math.floor(now() / 1000) - epoch
    fence = math.max(fence, proposal)
    if lost and ms < 2199023255000 then fence = math.max(fence, ms * 4096) end -- else not: nodes would not agree
    local keep = math.max(idle, 2 * ttl) + math.max(0, math.ceil(fence / 4096) - ms)
    if not hindered then try('SET', KEYS[2], string.format('%.0f', fence), 'PX', string.format('%.0f', keep)) end
  end
  return not hindered and fence or nil
end

-- Who was taken out of the line and cannot be served: as if nothing had happened. If it was the only one, the line is a new one.
local function put_back(member, arrived, idle)
  redis.pcall('ZADD', KEYS[3], arrived, member)
  redis.pcall('PEXPIRE', KEYS[3], string.format('%.0f', idle))
end

-- Serve the first who can be told: only those who came earlier than `before`, if that is given, and at that moment only those
-- who stand before `own`. Or only those who came earlier than `stands`, which is in line, last of them, and leaves it when nobody
-- else is left. `popped` is the first, if it has been taken out. Answers the token that has the lock now, its ttl and its fence; or
-- nothing: then the lock may be of somebody who could not be told, for its ttl, and the caller sees to that.
local function serve(before, own, fence, idle, epoch, proposal, stands, popped)
  for _ = 1, 128 do -- so many dead ones at once; more are left to the next release
    if before and not stands then
      local first = try('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
      local arrival = tonumber(first[2])
      if not arrival or arrival > before or (arrival == before and first[1] >= own) then return end
    end
    if not popped then popped = try('ZPOPMIN', KEYS[3]) end
    local member, arrived = popped[1], popped[2]
    popped = nil
    if hindered then break end
    if not member or member == stands then return end
    if stands and tonumber(arrived) >= before then -- at the same moment
      put_back(member, arrived, idle)
      break
    end
    local token, inbox, ms = string.match(member, '^(.*) (%S+) ([1-9]%d*)$')
    if token and #ms < 16 then -- else a stranger wrote it, and it is forgotten: the server would not take that for an expiry
      fence = fence or mint(tonumber(ms), idle, epoch, proposal)
      local told = 0
      if fence then -- what is published cannot be taken back, so that comes last
        noting(tonumber(ms), fence)
        if not hindered then try('SET', KEYS[1], token, 'PX', ms) end
        if not hindered then told = try('PUBLISH', inbox, string.format('%.0f\n%s\n%s\n%s', fence, ms, token, KEYS[1])) end
      end
      if hindered or not fence then
        put_back(member, arrived, idle)
        break
      end
      if told > 0 then return token, tonumber(ms), fence end
    end
  end
  if stands then redis.pcall('ZREM', KEYS[3], stands) end
end
