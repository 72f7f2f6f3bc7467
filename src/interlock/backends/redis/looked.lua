-- Behind preflight.lua, for a user whom the server has refused something: it lacks nothing that preflight.lua looks for.
-- replies {1, mark}
return {1, ARGV[#ARGV]}
