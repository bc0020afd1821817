-- wrk: each request asks with another number, so that no cache of answers or statements helps anybody, unless the
-- statement has no place for one. Arguments: METHOD PATH STATEMENT LOWEST COUNT. The place is written {}, and the
-- numbers are those from LOWEST to LOWEST + COUNT - 1, each of them once before one comes again.
local STRIDE = 7919  -- a prime: neighbours in time are not neighbours in the data
local method, path, statement, lowest, count, position

local function escaped(text)
  return (text:gsub("[^%w]", function(letter) return string.format("%%%02X", letter:byte()) end))
end

function init(args)
  method, path, statement, lowest, count = args[1], args[2], args[3], tonumber(args[4]), tonumber(args[5])
  math.randomseed(os.time() + tonumber(tostring({}):sub(8), 16) % 1000000)
  position = math.random(0, count - 1)
end

function request()
  position = (position + STRIDE) % count
  local text = statement:gsub("{}", string.format("%d", lowest + position))
  if method == "GET" then
    return wrk.format(method, path .. escaped(text))
  end
  return wrk.format(method, path, nil, text)
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '{"requests": %d, "seconds": %.6f, "errors": %d, "p50_ms": %.3f, "p99_ms": %.3f}\n',
    summary.requests, summary.duration / 1e6,
    errors.status + errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000))
end
