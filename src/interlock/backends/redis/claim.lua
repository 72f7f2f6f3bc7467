-- Take a name. If somebody has it, refuse.lua goes on from here. refused.lua and note.lua stand before this.
-- KEYS[1] the lock   KEYS[2] its fence counter   then, with a place, its line   then, on a quorum's node, the node's roll
-- ARGV[1] token   ARGV[2] ttl ms   ARGV[3] ms to keep an idle counter   ARGV[4] fence epoch, Unix ms
-- ARGV[5] a fence to take if it is higher and plausible, or 0
-- on a quorum's node ARGV the last but one: a hash of the list of its nodes   ARGV the last: the mark of this request, echoed
-- with a place: ARGV[6] how to stand in line   ARGV[7] arrival, or '' to stand there no more than before
--               ARGV[8] 1 if it may be in line already
-- without a place, the first claim of a client: ARGV[6] as in preflight.lua
-- replies {1, fence, mark} granted
--         | {-1, mark} no vote: the node has no roll for this list of nodes that is good, so leases may be gone (standing.lua)
--         | those of refuse.lua
local token, mark = ARGV[1], ARGV[#ARGV]
local line, roll_key, roll, holder, taken = nil, KEYS[3], nil, nil, nil
if #ARGV > 7 and string.sub(ARGV[6], 1, 10) ~= 'interlock:' then line, roll_key = KEYS[3], KEYS[4] end
if roll_key then
  roll = redis.pcall('HMGET', roll_key, 'history', 'list', 'longest', 'high', 'seed')
  if roll.err then return refused(roll) or spoilt_roll() end
  if not roll[1] or roll[2] ~= ARGV[#ARGV - 1]
    or not string.find(redis.call('INFO', 'replication'), 'master_replid:' .. roll[1], 1, true) then return {-1, mark} end
end
local time, stored = redis.call('TIME'), redis.pcall('GET', KEYS[2])
if refused(stored) then return stored end
local micros, fence, seed = time[1] * 1000000 + time[2], 0, roll and tonumber(roll[5]) or 0
if stored then fence = type(stored) == 'string' and tonumber(stored) end
local spoilt = not (fence and fence >= 0 and fence < 9007199254740990) -- 2^53: beyond it numbers repeat
if roll then
  local wrong = index(roll_key, KEYS[1], tonumber(ARGV[2]))
  if wrong then return wrong end
end
-- Whoever asks for the first time mostly finds the name free: taking it at once saves a look. Who stands in line asks first.
if not line and not spoilt then taken = redis.call('SET', KEYS[1], token, 'NX', 'PX', ARGV[2]) end
if not taken then holder = redis.call('GET', KEYS[1]) end
if not holder or holder == token then
  if spoilt then return redis.error_reply('INTERLOCK the fence counter is not a number that can grow') end
  if not taken then redis.call('SET', KEYS[1], token, 'PX', ARGV[2]) end
  local ttl, wrong = tonumber(ARGV[2]), nil
  local keep
  if not (holder and stored) or fence <= seed then -- a claim repeated by the holder keeps its fence, unless that is too old
    local clock = math.floor(micros / 1000) - ARGV[4]
    fence = math.max(fence, seed) + 1
    if clock < 2199023255000 then fence = math.max(fence, clock * 4096) end -- a clock beyond 2094 is wrong
    -- Nodes agree at once if all take what the client proposes; ten seconds ahead of this clock is as far as it may lead us.
    local proposal = tonumber(ARGV[5])
    if proposal > fence and proposal <= (clock + 10000) * 4096 then fence = proposal end
    -- An idle counter may go once the clock alone would mint more than it; if it ran ahead of the clock, that is later.
    keep = math.max(ARGV[3], 2 * ttl) + math.max(0, math.ceil(fence / 4096) - clock)
  end
  if roll then wrong = note(roll_key, tonumber(roll[3]), tonumber(roll[4]), ttl, fence) end
  local function write(...)
    local reply = not wrong and redis.pcall(...)
    if refused(reply) then wrong = reply end
  end
  if line and ARGV[8] == '1' and not holder then write('ZREM', line, ARGV[6]) end
  if keep then write('SET', KEYS[2], fence, 'PX', keep) end
  if wrong then -- nothing is granted
    if not holder and refused(redis.pcall('DEL', KEYS[1])) then redis.call('SET', KEYS[1], token, 'PX', 1) end -- SET it may
    return wrong
  end
  return {1, fence, mark}
end
