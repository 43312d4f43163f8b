"""What the server does for a directory and a call box, in Lua: each script is carried out whole, with no other between.

All keys begin with a prefix for the place of the sessions; `/` is in no id.

    alive             owner -> until when it counts as alive, in epoch milliseconds by the server's clock, as all times
    peers             owner -> its words
    owner:SESSION     the owner that has last said so
    beat, grace       when any owner was last heard; until when nobody counts as dead, after the server was away
    seq               the number of the last call
    all               the ids of calls (SESSION/AGENT/TOKEN), in the order in which they were put; of:SESSION likewise
    call:ID           one call
    line:AGENT/SESSION, agents:SESSION    the calls that wait, and whose
    front:AGENT       the sessions whose first call may be taken, in the order of these calls
    later             the sessions whose first call was given back, and when it may be taken
    taken             session -> the call that somebody has; hold:OWNER, holders: who
"""

from __future__ import annotations

import hashlib
from typing import Final


class Script:
    """One script. Its first argument is the prefix."""

    def __init__(self, body: str) -> None:
        self.text = f"{_SHARED}\n{body}".encode()
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


_SHARED: Final = """
local P = ARGV[1]
local call = redis.call
local t = call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

-- An owner is heard. When nobody was for a while, the server was away: all have the time to be heard again.
local function heard(owner, ttl)
  local last = tonumber(call('GET', P .. 'beat') or '')
  if not last or now - last > ttl / 2 then call('SET', P .. 'grace', now + ttl) end
  call('SET', P .. 'beat', now)
  call('ZADD', P .. 'alive', now + ttl, owner)
end

-- Say which calls of a session may be taken.
local function refresh(session)
  local free = call('HEXISTS', P .. 'taken', session) == 0
  for _, agent in ipairs(call('SMEMBERS', P .. 'agents:' .. session)) do
    local id = call('ZRANGE', P .. 'line:' .. agent .. '/' .. session, 0, 0)[1]
    local front = P .. 'front:' .. agent
    if not id then
      call('SREM', P .. 'agents:' .. session, agent)
      call('ZREM', front, session)
    elseif not free then
      call('ZREM', front, session)
    else
      local c = call('HMGET', P .. 'call:' .. id, 'seq', 'after')
      if tonumber(c[2]) <= now then
        call('ZADD', front, c[1], session)
      else
        call('ZREM', front, session)
        call('ZADD', P .. 'later', 'LT', c[2], session)
      end
    end
  end
end

local function wait_in_line(id)
  local c = call('HMGET', P .. 'call:' .. id, 'session', 'agent', 'seq')
  call('SADD', P .. 'agents:' .. c[1], c[2])
  call('ZADD', P .. 'line:' .. c[2] .. '/' .. c[1], c[3], id)
end

-- Nobody has the call any more.
local function let_go(id)
  local c = call('HMGET', P .. 'call:' .. id, 'session', 'owner')
  call('HSET', P .. 'call:' .. id, 'owner', '')
  call('HDEL', P .. 'taken', c[1])
  call('SREM', P .. 'hold:' .. c[2], id)
  return c[1]
end

local function drop(id)
  local c = call('HMGET', P .. 'call:' .. id, 'session', 'agent', 'owner')
  if c[3] ~= '' then let_go(id) end
  call('ZREM', P .. 'line:' .. c[2] .. '/' .. c[1], id)
  call('ZREM', P .. 'of:' .. c[1], id)
  call('ZREM', P .. 'all', id)
  call('DEL', P .. 'call:' .. id)
  refresh(c[1])
end

-- An owner is dead: its calls are free, but for those that have ended too many owners.
local function bury(owner, poison, ended_text)
  for _, id in ipairs(call('SMEMBERS', P .. 'hold:' .. owner)) do
    local session = let_go(id)
    call('HINCRBY', P .. 'call:' .. id, 'tries', 1)
    if call('HINCRBY', P .. 'call:' .. id, 'ended', 1) >= poison then
      call('HSET', P .. 'call:' .. id, 'parked', 1, 'error', ended_text)
    else
      wait_in_line(id)
    end
    refresh(session)
  end
  call('SREM', P .. 'holders', owner)
end

local function told(id)
  return call('HMGET', P .. 'call:' .. id, 'session', 'agent', 'token', 'text', 'at', 'tries', 'error', 'parked', 'seq')
end
"""

BEAT: Final = Script("""
local owner, ttl, words = ARGV[2], tonumber(ARGV[3]), ARGV[4]
heard(owner, ttl)
if words ~= '' then call('HSET', P .. 'peers', owner, words) else call('HDEL', P .. 'peers', owner) end
for _, dead in ipairs(call('ZRANGEBYSCORE', P .. 'alive', '-inf', now - ttl)) do
  call('ZREM', P .. 'alive', dead)
  call('HDEL', P .. 'peers', dead)
end
return 1
""")
"""Owner, how long it counts as alive (milliseconds, as always), its words as a peer or nothing."""

END: Final = Script("""
call('ZREM', P .. 'alive', ARGV[2])
call('HDEL', P .. 'peers', ARGV[2])
bury(ARGV[2], tonumber(ARGV[3]), ARGV[4])
return 1
""")
"""Owner, `POISON_OWNERS`, why calls are parked."""

PEERS: Final = Script("""
local names = call('ZRANGEBYSCORE', P .. 'alive', '(' .. string.format('%.0f', now), '+inf')
local found = {}
for _, name in ipairs(names) do
  local words = call('HGET', P .. 'peers', name)
  if words then found[#found + 1] = words end
end
return found
""")

HINT: Final = Script("""
local owner, ttl = ARGV[2], ARGV[3]
for i = 4, #ARGV, 2 do
  local key = P .. 'owner:' .. ARGV[i]
  if ARGV[i + 1] == '1' then
    call('SET', key, owner, 'PX', ttl)
  elseif call('GET', key) == owner then
    call('DEL', key)
  end
end
return 1
""")
"""Owner, how long hints are kept; then sessions, each with 1 if the owner has it, else 0."""

OWNER: Final = Script("""
local owner = call('GET', P .. 'owner:' .. ARGV[2])
local till = owner and call('ZSCORE', P .. 'alive', owner)
if till and tonumber(till) > now then return owner end
return ''
""")
"""Session."""

PUT: Final = Script("""
local id, session, agent, token, text = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local parked = call('HGET', P .. 'call:' .. id, 'parked')
if parked and parked ~= '1' then return 0 end
if parked then drop(id) end
local seq = call('INCR', P .. 'seq')
call('HSET', P .. 'call:' .. id, 'session', session, 'agent', agent, 'token', token, 'text', text, 'seq', seq,
  'at', now, 'after', 0, 'tries', 0, 'ended', 0, 'error', '', 'parked', 0, 'owner', '')
call('ZADD', P .. 'all', seq, id)
call('ZADD', P .. 'of:' .. session, seq, id)
wait_in_line(id)
refresh(session)
return 1
""")
"""Id, session, agent, token, text."""

_FREE: Final = """
local owner, ttl, limit, poison, ended_text = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local agents, known = {}, {}
for i = 8, 7 + tonumber(ARGV[7]) do agents[#agents + 1] = ARGV[i] end
local passing, before = {}, 8 + #agents + tonumber(ARGV[8 + #agents])
for i = 9 + #agents, before do passing[ARGV[i]] = true end
for i = before + 1, #ARGV do known[ARGV[i]] = true end

heard(owner, ttl)
if now >= tonumber(call('GET', P .. 'grace') or '0') then
  for _, holder in ipairs(call('SMEMBERS', P .. 'holders')) do
    local till = call('ZSCORE', P .. 'alive', holder)
    if not till or tonumber(till) <= now then
      bury(holder, poison, ended_text)
    end
  end
end
-- Taken by a question whose answer was lost.
for _, id in ipairs(call('SMEMBERS', P .. 'hold:' .. owner)) do
  if not known[id] then
    local session = let_go(id)
    wait_in_line(id)
    refresh(session)
  end
end
for _, session in ipairs(call('ZRANGEBYSCORE', P .. 'later', '-inf', now)) do
  call('ZREM', P .. 'later', session)
  refresh(session)
end
"""

TAKE: Final = Script(
    _FREE
    + """
-- Of several agents of a session, the one whose call is the oldest is next, also if that is not ready.
local function is_next(session, seq)
  if #agents == 1 then return true end
  for _, agent in ipairs(agents) do
    local head = call('ZRANGE', P .. 'line:' .. agent .. '/' .. session, 0, 0, 'WITHSCORES')[2]
    if head and tonumber(head) < seq then return false end
  end
  return true
end

local chosen, met, many, bound = {}, {}, math.max(limit, 8), nil
repeat
  local found = {}
  bound = nil
  for _, agent in ipairs(agents) do
    local front = call('ZRANGE', P .. 'front:' .. agent, 0, many - 1, 'WITHSCORES')
    for i = 1, #front, 2 do found[#found + 1] = {tonumber(front[i + 1]), front[i], agent} end
    if #front == 2 * many then bound = math.min(bound or math.huge, tonumber(front[#front])) end
  end
  table.sort(found, function(one, other) return one[1] < other[1] end)
  for _, each in ipairs(found) do
    if #chosen == limit or bound and each[1] > bound then break end
    if not met[each[2]] then
      met[each[2]] = true
      local tenant = string.match(each[2], '^(.-)~') or ''
      if not passing[tenant] and is_next(each[2], each[1]) then chosen[#chosen + 1] = each end
    end
  end
  many = many * 4
until #chosen == limit or not bound

local calls = {}
for _, each in ipairs(chosen) do
  local session = each[2]
  local line = P .. 'line:' .. each[3] .. '/' .. session
  local id = call('ZRANGE', line, 0, 0)[1]
  call('ZREM', line, id)
  call('HSET', P .. 'call:' .. id, 'owner', owner)
  call('HSET', P .. 'taken', session, id)
  call('SADD', P .. 'hold:' .. owner, id)
  call('SADD', P .. 'holders', owner)
  refresh(session)
  calls[#calls + 1] = told(id)
end
return calls
"""
)
"""Owner, how long it counts as alive, how many, `POISON_OWNERS`, why calls are parked, how many agents, the agents, how
many tenants are passed over, these, the ids of the calls that it knows to be its own.
"""

UNTAKE: Final = Script("""
local owner = ARGV[2]
for i = 3, #ARGV do
  if call('HGET', P .. 'call:' .. ARGV[i], 'owner') == owner then
    local session = let_go(ARGV[i])
    wait_in_line(ARGV[i])
    refresh(session)
  end
end
return 1
""")
"""Owner, ids."""

DONE: Final = Script("""
for i = 3, #ARGV do
  if call('HGET', P .. 'call:' .. ARGV[i], 'owner') == ARGV[2] then drop(ARGV[i]) end
end
return 1
""")
"""Owner, ids."""

AGAIN: Final = Script("""
local owner, id, wait, error, park = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
if call('HGET', P .. 'call:' .. id, 'owner') ~= owner then return 0 end
local session = let_go(id)
call('HINCRBY', P .. 'call:' .. id, 'tries', 1)
call('HSET', P .. 'call:' .. id, 'error', error, 'parked', park, 'after', now + wait)
if park == '0' then wait_in_line(id) end
refresh(session)
return 1
""")
"""Owner, id, in how long, error, 1 to park it."""

CALLS: Final = Script("""
local key = P .. 'all'
if ARGV[2] ~= '' then key = P .. 'of:' .. ARGV[2] end
local calls = {}
for _, id in ipairs(call('ZRANGEBYSCORE', key, '(' .. ARGV[3], '+inf', 'LIMIT', 0, ARGV[4])) do
  calls[#calls + 1] = told(id)
end
return calls
""")
"""Session or nothing, the number after which to begin, how many."""

FORGET: Final = Script("""
local ids = call('ZRANGE', P .. 'of:' .. ARGV[2], 0, -1)
for _, id in ipairs(ids) do drop(id) end
return #ids
""")
"""Session."""
