-- Part of refuse.lua, retreat.lua and hand_over.lua: stand in line. Whoever stands there keeps its place.
-- The line is kept as long as an idle counter, or twice the holder's time if that is longer: those who wait claim again by then.
local function join(line, member, arrival) -- 0: it stood there
  local added = redis.pcall('ZADD', line, 'NX', arrival, member)
  if type(added) == 'table' and not refused(added) then
    redis.call('DEL', line) -- another type: the key is ours, put it right
    added = redis.pcall('ZADD', line, arrival, member)
  end
  return added
end

-- `seconds`, if given: whoever stands there already, and asks again every few seconds, need not see to the line each time.
-- Answers the server's error if it refuses, and nothing else; then nobody stands there who did not before.
local function stand(line, member, arrival, left, idle, seconds)
  local added = join(line, member, arrival)
  if refused(added) then return added end
  if added == 0 and seconds and seconds % 60 >= 10 and 2 * left <= idle then return end
  local kept = redis.pcall('PEXPIRE', line, string.format('%.0f', math.max(idle, 2 * left)))
  if refused(kept) then
    if added == 1 then redis.pcall('ZREM', line, member) end
    return kept
  end
end
