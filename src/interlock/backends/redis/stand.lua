-- Part of refuse.lua, retreat.lua and hand_over.lua: stand in line. Whoever stands there keeps its place.
-- The line is kept as long as an idle counter, or twice the holder's time if that is longer: those who wait claim again by then.
local function join(line, member, arrival)
  local added = redis.pcall('ZADD', line, 'NX', arrival, member)
  if type(added) == 'table' then
    if string.find(added.err, 'WRONGTYPE', 1, true) then redis.call('DEL', line) end -- the key is ours: put it right
    redis.call('ZADD', line, arrival, member)
  end
end

local function stand(line, member, arrival, left, idle)
  join(line, member, arrival)
  redis.call('PEXPIRE', line, string.format('%.0f', math.max(idle, 2 * left)))
end
