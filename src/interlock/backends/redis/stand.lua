-- Part of refuse.lua, retreat.lua and hand_over.lua: stand in line. Whoever stands there keeps its place.
-- The line is kept as long as an idle counter, or twice the holder's time if that is longer: those who wait claim again by then.
local function join(line, member, arrival) -- 0: it stood there
  local added = redis.pcall('ZADD', line, 'NX', arrival, member)
  if type(added) == 'table' then
    if string.find(added.err, 'WRONGTYPE', 1, true) then redis.call('DEL', line) end -- the key is ours: put it right
    added = redis.call('ZADD', line, arrival, member)
  end
  return added
end

-- `seconds`, if given: whoever stands there already, and asks again every few seconds, need not see to the line each time.
local function stand(line, member, arrival, left, idle, seconds)
  if join(line, member, arrival) == 0 and seconds and seconds % 60 >= 10 and 2 * left <= idle then return end
  redis.call('PEXPIRE', line, string.format('%.0f', math.max(idle, 2 * left)))
end
