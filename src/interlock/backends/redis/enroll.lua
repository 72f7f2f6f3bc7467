-- Give a node its roll, unless it has one.
-- KEYS[1] the roll   ARGV[1] longest ms   ARGV[2] high   ARGV[3] seed   ARGV[4] the mark of this request, echoed
-- replies {1, mark} it has it from us | {0, mark} it had one
if redis.call('EXISTS', KEYS[1]) == 1 then return {0, ARGV[4]} end
redis.call('HSET', KEYS[1], 'longest', ARGV[1], 'high', ARGV[2], 'seed', ARGV[3])
return {1, ARGV[4]}
