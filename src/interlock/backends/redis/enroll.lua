-- Give a node a roll, unless it is in another state than when it was asked. standing.lua stands before this.
-- KEYS[1] the roll   KEYS[2] which loss of memory this is
-- ARGV[1] nodes   ARGV[2] a hash of them, or 'closed'   ARGV[3] high   ARGV[4] seed   ARGV[5] lineage, see core/membership.py
-- ARGV[6] the state, see standing.lua   ARGV[7] window ms   ARGV[8] the mark of this request, echoed
-- replies {1, mark} it has it from us | {0, mark} it did not take it
if ARGV[6] == '' or stamp() ~= ARGV[6] then return {0, ARGV[8]} end -- without a mark one loss could not be told from the next
local high, window = ARGV[3], ARGV[7]
if (tonumber(roll[3]) or 0) > tonumber(high) then high = roll[3] end
if (tonumber(roll[7]) or 0) > tonumber(window) then window = roll[7] end
redis.call('HSET', KEYS[1], 'history', history, 'nodes', ARGV[1], 'list', ARGV[2], 'high', high, 'seed', ARGV[4],
           'longest', string.format('%.0f', math.min(tonumber(roll[6]) or 0, 10000)), 'window', window,
           'lineage', ARGV[5], 'since', clock[1] .. '.' .. clock[2])
-- From now on leases can only end or be extended, which extend.lua notes: so it is known when the last short one is over.
if ARGV[2] == 'closed' and roll[5] ~= 'closed' then
  redis.call('HSET', KEYS[1], 'until', string.format('%.0f', clock_ms + math.min(tonumber(roll[6]) or 0, 10000)), 'renewed', '')
end
redis.pcall('DEL', KEYS[2]) -- it is of no use any more, and does no harm
return {1, ARGV[8]}
