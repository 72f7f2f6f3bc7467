-- Who holds a name. Never answers a secret.
-- KEYS[1] the lock   KEYS[2] its fence counter
-- ARGV[1] the mark of this request, echoed
-- replies {0, mark} free | {1, ms left (-1: no expiry), public facts, fence or '' for a foreign holder, mark}
local holder = redis.call('GET', KEYS[1])
if not holder then return {0, ARGV[1]} end
local owner, fence = '', ''
if string.sub(holder, 33, 33) == '~' then
  owner = string.sub(holder, 34)
  fence = redis.call('GET', KEYS[2]) or ''
end
return {1, redis.call('PTTL', KEYS[1]), owner, fence, ARGV[1]}
