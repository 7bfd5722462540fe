-- What the scripts have in common: numbers, time, and what a key holds.
--
-- Time   the server's: TIME, read once for each script, and PTTL
-- Values a block is the integer BLOCK, under any algorithm, with its own TTL
--
-- Numbers are doubles, exact up to MAX_EXACT. Nothing here goes beyond it: what
-- is multiplied fits by the ranges of a policy, or is split first.

local BLOCK = '9100000000000000000'
local MAX_EXACT = 9007199254740991

local function text(number) return string.format('%.0f', number) end

-- The quotient of two integers, rounded down. A plain division rounds, and
-- near an integer it may round up to it.
local function quotient(a, b) return (a - math.fmod(a, b)) / b end

local function quotient_up(a, b) return quotient(a, b) + (math.fmod(a, b) > 0 and 1 or 0) end

-- a x b / c, rounded down, and whether something is left. The product does not
-- fit, so it is split: first by whole c, then the remainder by 2^17. b and c are
-- windows.
local function scaled(a, b, c)
  local whole, rest = quotient(a, c), math.fmod(a, c)
  local high, low = quotient(rest, 131072), math.fmod(rest, 131072)
  local share = high * b
  local tail = math.fmod(share, c) * 131072 + low * b
  return whole * b + quotient(share, c) * 131072 + quotient(tail, c), math.fmod(tail, c) > 0
end

local time
local function now()
  if not time then
    local read = redis.call('TIME')
    time = read[1] * 1000 + math.floor(read[2] / 1000)
  end
  return time
end

-- The number that a value is, if it is one that we write.
local function counted(value)
  if #value > 19 then return nil end
  if value ~= '0' and not string.find(value, '^[1-9]%d*$') then return nil end
  return tonumber(value)
end

-- Whether these are numbers that can be in a value of ours.
local function exact(...)
  for i = 1, select('#', ...) do
    local number = select(i, ...)
    if not number or number > MAX_EXACT then return false end
  end
  return true
end

-- Each algorithm by the letter of its rules. A state has `current` and
-- `previous` counts, `left` milliseconds to the end of its window, and what its
-- algorithm adds.
--   read(rule, state, value)     the state of a value that has not ended, or of
--                                none; false if it is not one that we write
--   used(rule, state)            how much of the limit that is
--   weight(rule, cost)           a cost in the unit of a count
--   write(rule, key, state)      stores it, with its expiry; deletes what means
--                                nothing
--   give_back(rule, state, cost, left)   the state after a refund
--   owe(rule, state, debt)       a debt as of now; answers for how many
--                                milliseconds it means anything
local algorithms = {}
