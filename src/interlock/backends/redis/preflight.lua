-- Before the first claim of a client: what this user may not do of all that locks need, in one error. refused.lua stands before this,
-- claim.lua behind it. Each command is tried on a key that does not exist, where it changes nothing.
-- KEYS, ARGV as for a claim without a place, and one more: ARGV[6] a key that does not exist, interlock:…   or no KEYS, and
-- ARGV[1] 'quorum' on a quorum's node
-- replies the error LACKS with the rules that the user needs, or goes on
if string.sub(ARGV[6], 1, 10) == 'interlock:' then
  local none, lacks, seen = ARGV[6], {}, {}
  local function lack(rule)
    if not seen[rule] then
      seen[rule] = true
      lacks[#lacks + 1] = rule
    end
  end

  local function may(command, ...)
    local reply = redis.pcall(command, ...)
    if not refused(reply) then return true end
    if not (string.find(reply.err, 'ACL', 1, true) or string.find(reply.err, 'NOPERM', 1, true)
            or string.find(reply.err, 'user executing the script', 1, true)) then return false end -- full, a replica, …: the claim will say so
    if string.find(reply.err, ' channel', 1, true) then lack('&interlock:*')
    elseif string.find(reply.err, ' a key', 1, true) or string.find(reply.err, ' the keys', 1, true) then lack('~interlock:*')
    else lack('+' .. string.lower(command)) end
    return false
  end

  -- First SET, which a full server refuses: one that has written would be let go on.
  local sets = may('SET', none, '', 'XX', 'PX', 1)
  if sets or #lacks > 0 then
    may('TIME')
    may('GET', none)
    may('PTTL', none)
    may('PEXPIRE', none, 0)
    may('ZADD', none, 'XX', 0, '')
    may('ZREM', none, '')
    may('ZRANGE', none, 0, 0)
    may('ZPOPMIN', none)
    may('PUBLISH', 'interlock:inbox:none', '')
    local deletes, expires = may('DEL', none), not seen['+pexpire'] -- or there is no way back
    local function may_write(...) -- and take it back at once
      if not (deletes or expires or seen['~interlock:*']) then return end
      may(...)
      if deletes then redis.pcall('DEL', none) else redis.pcall('PEXPIRE', none, 0) end
    end
    may_write('INCR', none)
    if KEYS[3] or ARGV[1] == 'quorum' then
      may('HMGET', none, '')
      may('EXISTS', none)
      may('INFO', 'replication')
      may('ZRANDMEMBER', none, 2)
      may('ZREVRANGE', none, 0, 0)
      may_write('HSET', none, '', '')
    end
    if #lacks > 0 then return redis.error_reply('LACKS ' .. table.concat(lacks, ' ')) end
  end
end

