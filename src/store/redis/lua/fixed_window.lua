-- Fixed window: a plain integer that expires with the window, so that INCR and
-- PEXPIRE of another program work on it.

algorithms.f = {
  read = function(rule, state, value)
    state.stored = value and counted(value) or 0
    state.current, state.previous = math.min(state.stored, MAX_EXACT), 0
    return not value or counted(value)
  end,

  used = function(_, state) return state.current end,

  weight = function(_, cost) return cost end,

  -- A window that runs keeps its expiry: set anew, it would creep.
  write = function(rule, key, state)
    if state.runs then
      redis.call('INCRBY', key, text(state.current - state.stored))
    else
      if state.left == 0 then state.left = rule.window end
      redis.call('SET', key, text(state.current), 'PX', text(state.left))
    end
    state.runs, state.stored = true, state.current
  end,

  give_back = function(_, state, cost, left)
    if state.left <= left then state.current = math.max(0, state.current - cost) end
  end,

  -- `mark` is the end of the window.
  owe = function(rule, state, debt)
    local left = debt.mark - now()
    -- A window that ends later is another one, opened after this server had
    -- lost ours: what it told of ours says nothing of that.
    if state.left > left + math.min(1000, rule.window / 2) then debt.floor = 0 end
    if not state.runs then state.left = math.max(left, 0) end
    return left
  end,
}
