-- Part of roll.lua and enroll.lua: what the node's roll is worth, and what names the state that it is in.
-- KEYS[1] the roll   KEYS[2] which loss of memory this is
-- The history is the replication id: the server draws another one whenever its data may be other than it was (it was started,
-- or promoted, or got its data from another server). Each vote compares it, in the same step: see claim.lua.
local history = string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)')
local roll = redis.call('HMGET', KEYS[1], 'history', 'nodes', 'high', 'seed', 'list', 'longest', 'window',
                        'lineage', 'since', 'until', 'renewed')
local good = history and roll[1] == history
local clock = redis.call('TIME')
local clock_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- No two rolls have the same, though they may be alike: whoever looked at one must not change the other.
local function stamp()
  if good then -- in one word: it is noted (roll.lua)
    return (roll[9] or '') .. '/' .. (roll[5] or '') .. '/' .. (roll[3] == '0' and 'unused' or 'used') .. '/' .. history
  end
  local loss = redis.call('GET', KEYS[2])
  return loss and loss .. '/' .. (history or '') or ''
end
