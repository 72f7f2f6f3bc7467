-- Part of every script that writes. The server may refuse a command in the middle of a script: this user may not run it, or not on this
-- key or channel. What was written before stays. So a script does everything that may be refused first; where a write may be refused
-- after another, that one is taken back. (A full server, a replica and a broken disk refuse the first write or none.)
local function refused(reply) -- what it said; not: a key of another type, or a counter that is no number, which each script judges itself
  return type(reply) == 'table' and reply.err and not string.find(reply.err, 'WRONGTYPE', 1, true)
         and not string.find(reply.err, 'not an integer', 1, true) and not string.find(reply.err, 'overflow', 1, true) and reply
end

