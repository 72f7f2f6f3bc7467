-- What a node keeps about itself, and what it is.
-- KEYS[1] the roll   ARGV[1] the mark of this request, echoed
-- replies {longest ms or '', high, seed, run id, role, maxmemory policy, mark}; the last three '' where INFO is not allowed
local roll = redis.call('HMGET', KEYS[1], 'longest', 'high', 'seed')
local function info(section, field)
  local text = redis.pcall('INFO', section)
  return type(text) == 'string' and string.match(text, field .. ':([^\r\n]*)') or ''
end
return {roll[1] or '', roll[2] or '0', roll[3] or '0', info('server', 'run_id'), info('replication', 'role'),
        info('memory', 'maxmemory_policy'), ARGV[1]}
