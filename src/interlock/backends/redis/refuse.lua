-- Behind claim.lua: say who has the name and, with a place, stand in line (stand.lua stands before this).
-- replies {0, holder's ms left (-1: no expiry), holder's public facts, clock in µs, mark}
--         | {0, ms, facts, clock, a hash of the holder, the counter, mark} by a quorum's node
local owner = ''
if string.sub(holder, 33, 33) == '~' then owner = string.sub(holder, 34) end -- the first 32 are its secret
local left = redis.call('PTTL', KEYS[1])
local time = redis.call('TIME')
if line and ARGV[7] ~= '' then stand(line, ARGV[6], ARGV[7], left, tonumber(ARGV[3]), tonumber(time[1])) end
local micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
if roll then return {0, left, owner, micros, redis.sha1hex(holder), redis.call('GET', KEYS[2]) or '0', mark} end
return {0, left, owner, micros, mark}
