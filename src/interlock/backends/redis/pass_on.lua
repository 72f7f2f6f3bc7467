-- Behind release.lua: serve whoever can be told (serve.lua stands before this), beginning with the one who was first in line.
if not enrolled() then
  redis.call('ZADD', KEYS[3], first[2], first[1])
  redis.call('PEXPIRE', KEYS[3], ARGV[4]) -- if it was the only one, the line is a new one
  redis.call('DEL', KEYS[1])
elseif not serve(nil, '', nil, tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), nil, first) then
  redis.call('DEL', KEYS[1])
end
return {1, clock, ARGV[7]}
