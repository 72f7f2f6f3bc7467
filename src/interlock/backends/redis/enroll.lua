-- Give a node its roll, unless it has one, or has lost its memory once more since it was asked.
-- KEYS[1] the roll   KEYS[2] which loss of memory this is, see roll.lua
-- ARGV[1] longest ms   ARGV[2] high   ARGV[3] seed   ARGV[4] the loss   ARGV[5] the mark of this request, echoed
-- replies {1, mark} it has it from us | {0, mark} it did not take it
local text = redis.pcall('INFO', 'server')
local run = type(text) == 'string' and string.match(text, 'run_id:([^\r\n]*)') or ''
if redis.call('EXISTS', KEYS[1]) == 1 or (redis.call('GET', KEYS[2]) or '') .. '/' .. run ~= ARGV[4] then return {0, ARGV[5]} end
redis.call('HSET', KEYS[1], 'longest', ARGV[1], 'high', ARGV[2], 'seed', ARGV[3])
redis.call('DEL', KEYS[2])
return {1, ARGV[5]}
