-- One check of fixed-window policies, all or nothing; in front of it, what a
-- replica has counted by itself while it could not ask.
--
-- KEYS   one counter for each policy of the check, then the markers
-- ARGV   the number of counters, and of debts; five for each counter: limit,
--        window in ms, block in ms (0: none), cost (0: charges nothing, refused
--        when 1 would be), enforced (1 or 0); six for each debt: the position
--        of its counter, that of its marker (0: none), the floor (what this
--        server has told of the window, and charges of unknown outcome), the
--        delta (charges that surely never came here), the end on this server's
--        clock in ms, blocked (1 or 0)
-- Reply  two integers for each counter, the state BEFORE the check: the count,
--        or -1 for a block, and the milliseconds left. 0, 0 when nothing runs.
-- Time   the server's: what is left as PTTL tells it; TIME, read once, only
--        where something is owed
-- Expiry every key that is left behind has one: set with the value, or healed
-- Atomic because check and charge are one script: two clients cannot both see
--        the last place free, and a dropped client cannot leave half of it. A
--        marker is set with the delta that it marks, so nothing is added twice
--        however often it is sent
--
-- A counter is a plain integer, so that INCR and PEXPIRE of another program
-- work on it. A block is the value below, to such a program simply "over".

local BLOCK = '9100000000000000000'
local MAX_EXACT = 9007199254740991

local function text(number) return string.format('%.0f', number) end

-- The count of a value that a counter can have, or nil.
local function counted(value)
  if type(value) ~= 'string' or #value > 19 then return nil end
  if value ~= '0' and not string.find(value, '^[1-9]%d*$') then return nil end
  return tonumber(value)
end

-- What a key holds: count, milliseconds left (-1: no TTL, 0: nothing), whether
-- it is a block. Or nil and the error of a user that may not read: taken for a
-- foreign value, nothing would ever be counted.
local function read(key)
  local value = redis.pcall('GET', key)
  if not value then return 0, 0, false end
  if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
    return nil, value
  end
  local count = counted(value)
  if not count then
    -- Somebody else's value, of any type. It is not trusted.
    redis.call('DEL', key)
    return 0, 0, false
  end
  local left = redis.call('PTTL', key)
  -- A key with no time left has ended, even where it can still be read.
  if left == 0 or left == -2 then return 0, 0, false end
  return math.min(count, MAX_EXACT), left, count >= tonumber(BLOCK)
end

local counters, debts = tonumber(ARGV[1]), tonumber(ARGV[2])
local before, reply = {}, {}
local admitted, too_large = true, false

if debts > 0 then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  for i = 1, debts do
    local at = 2 + 5 * counters + 6 * (i - 1)
    local position, marker = tonumber(ARGV[at + 1]), KEYS[tonumber(ARGV[at + 2])]
    local key, window = KEYS[position], tonumber(ARGV[2 + 5 * position - 3])
    local floor, delta = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
    local left = tonumber(ARGV[at + 5]) - now
    local count, ttl, blocked = read(key)
    if not count then return ttl end
    if left > 0 and ARGV[at + 6] == '1' then
      -- Of two blocks the one that ends later stands.
      if not blocked or (ttl >= 0 and ttl < left) then
        redis.call('SET', key, BLOCK, 'PX', text(left))
      end
    elseif left > 0 then
      if marker and not redis.call('SET', marker, '1', 'NX', 'PX', text(left)) then
        -- It was added when this was sent before, and is now part of the floor.
        floor, delta = floor + delta, 0
      end
      -- A window that ends later is another one, opened after this server had
      -- lost ours: what it told of ours says nothing of that.
      if ttl > left + math.min(1000, window / 2) then floor = 0 end
      local owed = math.min(math.max(count, floor) + delta, MAX_EXACT)
      if ttl == 0 and owed > 0 then
        redis.call('SET', key, text(owed), 'PX', text(left))
      elseif ttl ~= 0 and not blocked and owed > count then
        redis.call('INCRBY', key, text(owed - count))
      end
    end
  end
end

for i = 1, counters do
  local key, at = KEYS[i], 2 + 5 * (i - 1)
  local limit, window, block = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local cost, enforced = tonumber(ARGV[at + 4]), ARGV[at + 5] == '1'

  local count, left, blocked = read(key)
  if not count then return left end
  if left == -1 or (left > window and not blocked) then
    left = window
    if blocked and block > 0 then left = block end
    redis.call('PEXPIRE', key, text(left))
  end

  local verdict = 'admit'
  if limit == 0 then
    verdict = 'limit'
  elseif cost > limit then
    verdict = 'too large'
  elseif blocked then
    verdict = 'blocked'
  elseif math.max(cost, 1) > limit - count then
    verdict = 'limit'
  end
  if enforced and verdict ~= 'admit' then admitted = false end
  if enforced and verdict == 'too large' then too_large = true end

  before[i] = { verdict = verdict, left = left, block = block > 0 and limit > 0 and cost > 0 }
  reply[2 * i - 1] = blocked and -1 or count
  reply[2 * i] = left
end

for i = 1, counters do
  local key, at = KEYS[i], 2 + 5 * (i - 1)
  local verdict = before[i].verdict
  if verdict == 'admit' and admitted and ARGV[at + 4] ~= '0' then
    if before[i].left > 0 then
      redis.call('INCRBY', key, ARGV[at + 4])
    else
      redis.call('SET', key, ARGV[at + 4], 'PX', ARGV[at + 2])
    end
  elseif verdict == 'limit' and not too_large and before[i].block then
    redis.call('SET', key, BLOCK, 'PX', ARGV[at + 3])
  end
end

return reply
