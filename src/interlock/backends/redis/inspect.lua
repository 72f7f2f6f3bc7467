-- Who holds a name, and who waits for it. Never answers a secret.
-- KEYS[1] the lock   KEYS[2] its fence counter   KEYS[3] its line: `token inbox ms` by arrival
-- ARGV[1] how many of the line at most   ARGV[2] the mark of this request, echoed
-- replies {held, ms left (-1: no expiry), public facts, fence or '' for a foreign holder, waiters, {facts, microseconds, ...}, mark}
local function facts(token)
  return string.sub(token, 33, 33) == '~' and string.sub(token, 34) or ''
end

local queue, count = {}, redis.pcall('ZCARD', KEYS[3])
if type(count) ~= 'number' then count = 0 end -- somebody spoilt the line: nobody is in it
if count > 0 then
  local time = redis.call('TIME')
  local clock = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local line = redis.call('ZRANGE', KEYS[3], 0, ARGV[1] - 1, 'WITHSCORES')
  for i = 1, #line, 2 do
    queue[i] = facts(string.match(line[i], '^(.*) %S+ %d+$') or '')
    queue[i + 1] = string.format('%.0f', math.max(clock - line[i + 1], 0))
  end
end

local holder = redis.call('GET', KEYS[1])
if not holder then return {0, 0, '', '', count, queue, ARGV[2]} end
local fence = string.sub(holder, 33, 33) == '~' and redis.pcall('GET', KEYS[2]) or ''
if type(fence) == 'table' then fence = '' end -- somebody spoilt the counter
return {1, redis.call('PTTL', KEYS[1]), facts(holder), fence, count, queue, ARGV[2]}
