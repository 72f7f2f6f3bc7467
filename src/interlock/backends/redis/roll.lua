-- How a node stands. standing.lua stands before this.
-- KEYS[1] the roll   KEYS[2] which loss of memory this is   KEYS[3] the waits that are noted here   ARGV[1] 1: mark a loss
-- ARGV[2] how many ms a request of this client may take: noted if it is more than before
-- ARGV then for each wait to be noted: its loss, age in ms, ms that are left or -1   ARGV the last: this request's mark
-- replies {1 if there is a roll, 1 if it is good, nodes, high, seed, 'closed' or a hash of the nodes, window ms, lineage, ms for which a
--          lease may last, the name renewed last since it was closed, loss, run id, role, maxmemory policy,
--          {loss, age in ms, ms that are left or -1, ...}, mark}
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
  for _, member in ipairs(line) do
    local ms = string.match(member, ' (%d+)$')
    if ms and #ms < 16 then longest = math.max(longest, tonumber(ms)) end -- as in serve.lua
  end
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
-- Waits of nodes that cast no vote (core/waits.py): `loss since until` each, in ms of this clock, until -1 while it is not known.
-- The first note of a loss stays, and of several ends the nearest. What the server refuses here is only not noted. Anybody may have
-- written there: what is longer than ours can be is none.
local waits, known, changed, answer, longest = {}, {}, false, {}, 0
local text = redis.pcall('GET', KEYS[3])
if type(text) ~= 'string' or #text > 8192 then text = '' end
for loss, since, ends in string.gmatch(text, '(%S+) (%-?%d+) (%-?%d+)') do
  known[loss] = {loss, tonumber(since), tonumber(ends)}
  waits[#waits + 1] = known[loss]
end
for i = 3, #ARGV - 1, 3 do
  local loss, left = ARGV[i], tonumber(ARGV[i + 2])
  local wait = known[loss]
  if not wait and #loss <= 128 and not string.find(loss, '%s') then
    wait, changed = {loss, clock_ms - tonumber(ARGV[i + 1]), -1}, true
    known[loss], waits[#waits + 1] = wait, wait
  end
  if wait and left >= 0 and (wait[3] < 0 or clock_ms + left < wait[3]) then wait[3], changed = clock_ms + left, true end
end
while #waits > 32 do table.remove(waits, 1) end
for i, wait in ipairs(waits) do
  local left = wait[3] < 0 and -1 or math.max(wait[3] - clock_ms, 0)
  answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = wait[1], math.max(clock_ms - wait[2], 0), left
  longest = math.max(longest, left)
  waits[i] = string.format('%s %.0f %.0f', wait[1], wait[2], wait[3])
end
if changed then redis.pcall('SET', KEYS[3], table.concat(waits, '\n'), 'PX', string.format('%.0f', 86400000 + math.min(longest, 1e13))) end
return {(roll[2] or roll[3]) and 1 or 0, good and 1 or 0, roll[2] or '', roll[3] or '0', roll[4] or '0', roll[5] or '', roll[7] or '0',
        roll[8] or '', held, closed and roll[11] or '', stamp(),
        info('server', 'run_id'), info('replication', 'role'), info('memory', 'maxmemory_policy'), answer, ARGV[#ARGV]}
