-- wrk: each request asks for another number, so that no cache of answers or statements helps anybody.
local count = 0

function init(args)
  math.randomseed(os.time() + tonumber(tostring({}):sub(8), 16) % 1000000)
  count = math.random(1, 1000000) * 1000
end

function request()
  count = count + 1
  return wrk.format("POST", nil, nil, "SELECT " .. count)
end

function done(summary, latency, requests)
  io.write(string.format(
    '{"requests": %d, "seconds": %.3f, "errors": %d, "p50_ms": %.3f, "p99_ms": %.3f}\n',
    summary.requests, summary.duration / 1e6,
    summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000))
end
