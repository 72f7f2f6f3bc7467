-- What a node keeps about itself, and what it is.
-- KEYS[1] the roll   KEYS[2] which loss of memory this is   ARGV[1] 1: mark it if there is no roll   ARGV[2] this request's mark
-- replies {longest ms or '', high, seed, run id, role, maxmemory policy, loss, mark}; those of INFO are '' where it is not allowed
local roll = redis.call('HMGET', KEYS[1], 'longest', 'high', 'seed')
local function info(section, field)
  local text = redis.pcall('INFO', section)
  return type(text) == 'string' and string.match(text, field .. ':([^\r\n]*)') or ''
end
local run, loss = info('server', 'run_id'), ''
if not roll[1] and ARGV[1] == '1' then
  local time = redis.call('TIME')
  redis.pcall('SET', KEYS[2], time[1] .. '.' .. time[2], 'NX') -- a replica does not, and need not
  -- With the run: a restart may bring back what was on disk before the last loss.
  loss = (redis.call('GET', KEYS[2]) or '') .. '/' .. run
end
return {roll[1] or '', roll[2] or '0', roll[3] or '0', run, info('replication', 'role'), info('memory', 'maxmemory_policy'),
        loss, ARGV[2]}
