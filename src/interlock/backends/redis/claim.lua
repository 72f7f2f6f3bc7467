-- Take a name. If somebody has it, refuse.lua goes on from here.
-- KEYS[1] the lock   KEYS[2] its fence counter   then, with a place, its line   then, on a quorum's node, the node's roll
-- ARGV[1] token   ARGV[2] ttl ms   ARGV[3] ms to keep an idle counter   ARGV[4] fence epoch, Unix ms
-- ARGV[5] a fence to take if it is higher and plausible, or 0   ARGV the last: the mark of this request, echoed
-- with a place: ARGV[6] how to stand in line   ARGV[7] arrival, or '' to stand there no more than before
--               ARGV[8] 1 if it may be in line already
-- replies {1, fence, clock in µs or 0 if it was not read, mark} granted
--         | {-1, mark} no vote: the roll is gone, and leases may be gone with it
--         | those of refuse.lua
local token, mark = ARGV[1], ARGV[#ARGV]
local line, roll_key, roll, holder, taken = nil, KEYS[3], nil, nil, nil
if #ARGV > 6 then line, roll_key = KEYS[3], KEYS[4] end
if roll_key then
  roll = redis.call('HMGET', roll_key, 'longest', 'high', 'seed')
  if not roll[1] then return {-1, mark} end
end
-- Whoever asks for the first time mostly finds the name free: taking it at once saves a look. Who stands in line asks first.
if not line then taken = redis.call('SET', KEYS[1], token, 'NX', 'PX', ARGV[2]) end
if not taken then holder = redis.call('GET', KEYS[1]) end
if not holder or holder == token then
  local ttl, micros = tonumber(ARGV[2]), 0
  local stored = redis.pcall('GET', KEYS[2])
  local fence = roll and tonumber(roll[3]) or 0
  if stored then
    if type(stored) == 'string' then fence = tonumber(stored) end
    if type(stored) ~= 'string' or not (fence and fence >= 0 and fence < 9007199254740990) then -- 2^53: beyond it numbers repeat
      if taken then redis.call('DEL', KEYS[1]) end
      if type(stored) == 'table' then return stored end
      return redis.error_reply('INTERLOCK the fence counter is not a number that can grow')
    end
  end
  if not (holder and stored) then -- a claim repeated by the holder keeps its fence
    local time = redis.call('TIME')
    micros = time[1] * 1000000 + time[2]
    local clock = math.floor(micros / 1000) - ARGV[4]
    fence = fence + 1
    if clock < 2199023255000 then fence = math.max(fence, clock * 4096) end -- a clock beyond 2094 is wrong
    -- Nodes agree at once if all take what the client proposes; ten seconds ahead of this clock is as far as it may lead us.
    local proposal = tonumber(ARGV[5])
    if proposal > fence and proposal <= (clock + 10000) * 4096 then fence = proposal end
    -- An idle counter may go once the clock alone would mint more than it; if it ran ahead of the clock, that is later.
    local keep = math.max(ARGV[3], 2 * ttl) + math.max(0, math.ceil(fence / 4096) - clock)
    local noted = redis.pcall('SET', KEYS[2], fence, 'PX', keep)
    if noted.err then
      if taken then redis.call('DEL', KEYS[1]) end
      return noted
    end
  end
  if not taken then redis.call('SET', KEYS[1], token, 'PX', ARGV[2]) end
  if line and ARGV[8] == '1' and not holder then redis.pcall('ZREM', line, ARGV[6]) end
  if roll then
    if ttl > tonumber(roll[1]) then redis.call('HSET', roll_key, 'longest', ARGV[2]) end
    -- Noted coarsely, about once a second, and always above what is stored.
    if fence > tonumber(roll[2]) then redis.call('HSET', roll_key, 'high', string.format('%.0f', fence + 4194304)) end
  end
  return {1, fence, micros, mark}
end
