-- How a node stands. standing.lua stands before this.
-- KEYS[1] the roll   KEYS[2] which loss of memory this is   ARGV[1] 1: mark a loss
-- ARGV[2] how many ms a request of this client may take: noted if it is more than before   ARGV[3] this request's mark
-- replies {1 if there is a roll, 1 if it is good, nodes, high, seed, 'closed' or a hash of the nodes, window ms, lineage, ms for which a
--          lease may last, the name renewed last since it was closed, loss, run id, role, maxmemory policy, mark}
local function info(section, field)
  return string.match(redis.call('INFO', section), field .. ':([^\r\n]*)') or ''
end
-- Short leases are not counted one by one: the longest of them bounds them all, and on a closed node when the last of them ends.
-- The names of long ones are known (note.lua), and when each ends at the latest. So the walk from the last on ends early; on a closed
-- node those that are not held any more are struck off. What this user may not look at is taken to last until then.
local held, long, closed = tonumber(roll[6]) or 0, KEYS[1] .. ':long', good and roll[5] == 'closed'
if closed then held = math.max((tonumber(roll[10]) or 0) - clock_ms, 0) end
-- A line among them: what those who stand in it would be served with. (No lock is named so: core/checks.py.)
local function left_of(name, most)
  if string.sub(name, 1, 11) ~= 'interlock:{' then
    local left = redis.pcall('PTTL', name)
    return type(left) == 'number' and left or most
  end
  if closed then return 0 end -- nobody is served
  local line, longest = redis.pcall('ZRANGE', name, 0, 99), 0
  if line.err or #line == 100 then return most end
  for _, member in ipairs(line) do longest = math.max(longest, tonumber(string.match(member, ' (%d+)$')) or 0) end
  return longest
end
local names = redis.call('ZREVRANGE', long, 0, 999, 'WITHSCORES')
for i = 1, #names, 2 do
  local most = tonumber(names[i + 1]) - clock_ms
  if most <= held then break end
  local left = left_of(names[i], most)
  if closed and left < 0 then redis.pcall('ZREM', long, names[i]) end
  held = math.max(held, i == 1999 and most or left)
end
if not good and ARGV[1] == '1' and not redis.call('GET', KEYS[2]) then
  redis.pcall('SET', KEYS[2], clock[1] .. '.' .. clock[2], 'NX') -- a replica does not, and need not
end
if good and tonumber(ARGV[2]) > (tonumber(roll[7]) or 0) then
  redis.call('HSET', KEYS[1], 'window', ARGV[2])
  roll[7] = ARGV[2]
end
return {(roll[2] or roll[3]) and 1 or 0, good and 1 or 0, roll[2] or '', roll[3] or '0', roll[4] or '0', roll[5] or '', roll[7] or '0',
        roll[8] or '', held, closed and roll[11] or '', stamp(),
        info('server', 'run_id'), info('replication', 'role'), info('memory', 'maxmemory_policy'), ARGV[3]}
