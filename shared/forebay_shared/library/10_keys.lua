-- Every key of a pool. The pool's prefix comes from the first key of the call; nothing else spells
-- a key name. Types, writers and lives stand in docs/protocol.md and in keys.py.

local K = {}

function K.clock(q) return q.prefix .. 'clock' end
function K.settings(q) return q.prefix .. 'settings' end
function K.ledger(q) return q.prefix .. 'ledger' end
function K.flows(q) return q.prefix .. 'flows' end
function K.leases(q) return q.prefix .. 'leases' end
function K.delayed(q) return q.prefix .. 'delayed' end
function K.deadlines(q) return q.prefix .. 'deadlines' end
function K.dead(q) return q.prefix .. 'dead' end
function K.workers(q) return q.prefix .. 'workers' end
function K.models(q) return q.prefix .. 'models' end
function K.scratch(q) return q.prefix .. 'scratch' end

function K.queue(q, flow, bucket) return q.prefix .. 'queue:' .. flow .. ':' .. bucket end
function K.ready(q, class) return q.prefix .. 'ready:' .. class end
function K.tags(q, class) return q.prefix .. 'tags:' .. class end
function K.starts(q, class) return q.prefix .. 'starts:' .. class end
function K.waiting(q, class) return q.prefix .. 'waiting:' .. class end
function K.suspects(q, class) return q.prefix .. 'suspects:' .. class end
function K.depth(q, class) return q.prefix .. 'depth:' .. class end
function K.sizes(q, class) return q.prefix .. 'sizes:' .. class end
function K.returned(q, class) return q.prefix .. 'returned:' .. class end
function K.bell(q, class) return q.prefix .. 'bell:' .. class end

function K.request(q, id) return q.prefix .. 'request:' .. id end
function K.result(q, id) return q.prefix .. 'result:' .. id end
function K.prompt(q, id) return q.prefix .. 'prompt:' .. id end
function K.output(q, id) return q.prefix .. 'output:' .. id end
function K.idempotency(q, name) return q.prefix .. 'idempotency:' .. name end
function K.inbox(q, name) return q.prefix .. 'inbox:' .. name end
function K.worker(q, id) return q.prefix .. 'worker:' .. id end
function K.control(q, id) return q.prefix .. 'control:' .. id end
function K.grant(q, id) return q.prefix .. 'grant:' .. id end
function K.limits(q, tenant) return q.prefix .. 'limits:' .. tenant end
function K.requeues(q, id) return q.prefix .. 'requeues:' .. id end
function K.usage(q, tenant) return q.prefix .. 'usage:' .. tenant end
function K.refused(q, limit) return q.prefix .. 'refused:' .. limit end
