-- Take a name, or say who has it and, with a place, stand in line (stand.lua stands before this).
-- KEYS[1] the lock   KEYS[2] its fence counter   then, with a place, its line   then, on a quorum's node, the node's roll
-- ARGV[1] token   ARGV[2] ttl ms   ARGV[3] ms to keep an idle counter   ARGV[4] fence epoch, Unix ms
-- ARGV[5] a fence to take if it is higher and plausible, or 0   ARGV the last: the mark of this request, echoed
-- with a place: ARGV[6] how to stand in line   ARGV[7] arrival, or '' to stand there no more than before
--               ARGV[8] 1 if it may be in line already
-- replies {1, fence, clock in µs or 0 if it was not read, mark} granted
--         | {0, holder's ms left (-1: no expiry), holder's public facts, clock, mark} refused
--         | {0, ms, facts, clock, a hash of the holder, the counter, mark} refused by a quorum's node
--         | {-1, mark} no vote: the roll is gone, and leases may be gone with it
local token, ttl, mark = ARGV[1], tonumber(ARGV[2]), ARGV[#ARGV]
local line, roll_key, roll, micros = nil, KEYS[3], nil, 0
if #ARGV > 6 then line, roll_key = KEYS[3], KEYS[4] end
if roll_key then
  roll = redis.call('HMGET', roll_key, 'longest', 'high', 'seed')
  if not roll[1] then return {-1, mark} end
end
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= token then
  local owner = ''
  if string.sub(holder, 33, 33) == '~' then owner = string.sub(holder, 34) end -- the first 32 are its secret
  local left = redis.call('PTTL', KEYS[1])
  if line and ARGV[7] ~= '' then stand(line, ARGV[6], ARGV[7], left, tonumber(ARGV[3])) end
  local time = redis.call('TIME')
  micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
  if roll then return {0, left, owner, micros, redis.sha1hex(holder), redis.call('GET', KEYS[2]) or '0', mark} end
  return {0, left, owner, micros, mark}
end
local stored = redis.call('GET', KEYS[2])
local fence = roll and tonumber(roll[3]) or 0
if stored then
  fence = tonumber(stored)
  if not (fence and fence >= 0 and fence < 9007199254740990) then -- 2^53: beyond it numbers repeat
    return redis.error_reply('INTERLOCK the fence counter is not a number that can grow')
  end
end
if not (holder and stored) then -- a claim repeated by the holder keeps its fence
  local time = redis.call('TIME')
  micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local clock = math.floor(micros / 1000) - tonumber(ARGV[4])
  fence = fence + 1
  if clock < 2199023255000 then fence = math.max(fence, clock * 4096) end -- a clock beyond 2094 is wrong
  -- Nodes agree at once if all take what the client proposes; ten seconds ahead of this clock is as far as it may lead us.
  local proposal = tonumber(ARGV[5])
  if proposal > fence and proposal <= (clock + 10000) * 4096 then fence = proposal end
  -- An idle counter may go once the clock alone would mint more than it; if it ran ahead of the clock, that is later.
  local keep = math.max(tonumber(ARGV[3]), 2 * ttl) + math.max(0, math.ceil(fence / 4096) - clock)
  redis.call('SET', KEYS[2], string.format('%.0f', fence), 'PX', string.format('%.0f', keep))
end
redis.call('SET', KEYS[1], token, 'PX', ARGV[2])
if line and ARGV[8] == '1' and not holder then redis.pcall('ZREM', line, ARGV[6]) end
if roll then
  if ttl > tonumber(roll[1]) then redis.call('HSET', roll_key, 'longest', ARGV[2]) end
  -- Noted coarsely, about once a second, and always above what is stored.
  if fence > tonumber(roll[2]) then redis.call('HSET', roll_key, 'high', string.format('%.0f', fence + 4194304)) end
end
return {1, fence, micros, mark}
