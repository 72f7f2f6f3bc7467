-- Give back what a lost vote left, serve nobody, and stand in line (stand.lua stands before this).
-- KEYS[1] the lock   KEYS[2] its fence counter   KEYS[3] its line
-- ARGV[1] token   ARGV[2] how to stand in line   ARGV[3] arrival   ARGV[4] ms for which somebody may have the lock elsewhere
-- ARGV[5] ms to keep an idle counter   ARGV[6] the mark of this request, echoed
-- replies {the counter, mark}
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
if ARGV[3] ~= '' then stand(KEYS[3], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])) end
return {redis.call('GET', KEYS[2]) or '0', ARGV[6]}
