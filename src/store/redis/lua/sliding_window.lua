-- Sliding window by two counters: `window:index:current:previous`, where the
-- sub-windows are as long as the window and counted from 1970. It expires when
-- neither count weighs any more.

algorithms.s = {
  read = function(rule, state, value)
    local window = rule.window
    local index = quotient(now(), window)
    local was_window, was_index, current, previous = window, index, 0, 0
    if value then
      local w, i, c, p = string.match(value, '^(%d+):(%d+):(%d+):(%d+)$')
      was_window, was_index, current, previous = tonumber(w), tonumber(i), tonumber(c), tonumber(p)
      if not exact(was_window, was_index, current, previous) or was_window == 0 then return false end
    end
    if was_window ~= window then
      -- The window is another one now. What it had counted counts on, from now.
      current, previous = math.min(current + previous, MAX_EXACT), 0
      state.converted = true
    elseif was_index > index then
      -- The clock went back, the window has not.
      index = was_index
    elseif was_index < index then
      current, previous = 0, was_index == index - 1 and current or 0
    end
    state.index, state.current, state.previous = index, current, previous
    state.left = math.min((index + 1) * window - now(), window)
    return true
  end,

  used = function(rule, state)
    local weighed = scaled(state.previous, state.left, rule.window)
    return weighed + state.current
  end,

  weight = function(_, cost) return cost end,

  write = function(rule, key, state)
    if state.current == 0 and state.previous == 0 then return redis.call('DEL', key) end
    local value = { text(rule.window), text(state.index), text(state.current), text(state.previous) }
    local left = state.left + (state.current > 0 and rule.window or 0)
    redis.call('SET', key, table.concat(value, ':'), 'PX', text(left))
  end,

  give_back = function(rule, state, cost, left)
    local behind, half = state.left - left, quotient(rule.window, 2)
    if behind <= half then
      state.current = math.max(0, state.current - cost)
    elseif behind - half <= rule.window then
      state.previous = math.max(0, state.previous - cost)
    end
  end,

  -- `mark` is the index of the current sub-window.
  owe = function(rule, state, debt)
    local behind = state.index - debt.mark
    if behind == 1 then
      debt.floor_before, debt.delta_before, debt.floor, debt.delta = debt.floor, debt.delta, 0, 0
    elseif behind > 1 then
      return 0
    end
    return state.left + rule.window
  end,
}
