-- Behind release.lua: serve whoever can be told (serve.lua stands before this), beginning with the one who was first in line.
-- Whatever keeps it from serving, the lock is released.
local idle, served = tonumber(ARGV[3]), nil
if enrolled() then
  served = serve(nil, '', nil, idle, tonumber(ARGV[4]), tonumber(ARGV[5]), nil, first)
else
  put_back(first[1], first[2], idle)
end
if not served then redis.call('DEL', KEYS[1]) end
return {1, hindered and 1 or 0, ARGV[#ARGV]}
