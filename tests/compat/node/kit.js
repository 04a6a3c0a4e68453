// SPDX-License-Identifier: Apache-2.0
'use strict';

const { Producer, Consumer, Message } = require('ali-ons');

// Bounds each single wait for a condition.
const WAIT_MS = 1000 * Number(process.env.RINGMQ_COMPAT_WAIT_SECS || 30);

// Breaks every seventh message that arrives, to show that the checks notice: lose, twice or body.
const FAULT = process.env.RINGMQ_COMPAT_FAULT;

const FENCE = 'fence';
const SEND_OK = 'SEND_OK';

const log = process.env.RINGMQ_COMPAT_LOG ? console.error : () => {};
const logger = { debug() {}, info: log, warn: log, error: log };

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

async function waitFor(what, condition) {
  const end = Date.now() + WAIT_MS;
  while (!condition()) {
    if (Date.now() > end) throw new Error(`waited ${WAIT_MS / 1000}s for ${what}`);
    await sleep(10);
  }
}

// The promise, or an error once it takes longer than a wait may take.
async function inTime(what, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`waited ${WAIT_MS / 1000}s for ${what}`)), WAIT_MS);
  });
  try {
    return await Promise.race([ promise, late ]);
  } finally {
    clearTimeout(timer);
  }
}

function clientOptions(namesrv, instanceName) {
  // The client insists on an HTTP client, which it only uses to find name servers.
  return { nameSrv: namesrv, httpclient: {}, instanceName, logger };
}

// ali-ons keeps one hidden producer per process, on the connections of whatever client
// comes first. With a client of its own it keeps no other client open.
function startInnerProducer(namesrv) {
  Producer.getDefaultProducer(clientOptions(namesrv, `inner-${process.pid}`)).catch(log);
}

// What a scenario works with: names, clients to close, messages and checks.
class Kit {
  constructor(name, namesrv, run) {
    // Both halves of the restart test share one topic and one group.
    if (name === 'before_restart' || name === 'after_restart') name = 'broker_restart';
    this.namesrv = namesrv;
    this.topic = `compat_node_${run}_${name}`;
    this.group = `GID_compat_node_${run}_${name}`;
    this.instance = `${run}-${name}-${process.pid}`;
    this.seq = 0;
    this.closers = [];
  }

  // Each client gets an id of its own, as separate processes would have.
  nextInstance() {
    this.seq++;
    return `${this.instance}-${this.seq}`;
  }

  // Registers a clean-up that runs once, at the latest when the scenario ends.
  onClose(f) {
    let done;
    const now = () => {
      if (!done) done = inTime('a client to close', f());
      return done;
    };
    this.closers.push(now);
    return now;
  }

  async close() {
    for (const closer of this.closers.reverse()) await closer().catch(log);
  }

  async producer() {
    const p = new Producer({
      ...clientOptions(this.namesrv, this.nextInstance()),
      producerGroup: 'P' + this.group,
    });
    p.on('error', log);
    await inTime('the producer to start', p.ready());
    this.onClose(() => p.close());
    return p;
  }

  // A producer that can send to the topic although it does not exist. On its own the client
  // gives up when the name server says so (code 17), before it gets to the route of TBW102
  // that it has code for; here that code is called. The topic is created by the first send.
  async producerForNewTopic() {
    const p = await this.producer();
    await inTime('the default route', p._mqClient.updateTopicRouteInfoFromNameServer(this.topic, true, p));
    return p;
  }

  // Starts a push consumer; the returned function stops it.
  async consumer(sink, expression) {
    const c = new Consumer({
      ...clientOptions(this.namesrv, this.nextInstance()),
      consumerGroup: this.group,
      consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
      // The client does not listen to NOTIFY_CONSUMER_IDS_CHANGED, it only polls.
      rebalanceInterval: 2000,
    });
    c.on('error', log);
    await inTime('the consumer to start', c.ready());
    c.subscribe(this.topic, expression, async m => sink.add(m));
    return this.onClose(() => c.close());
  }

  // Waits until the name server knows the topic, and returns the number of its queues.
  async queueCount(p) {
    let route = null;
    const asking = (async () => {
      while (!route) {
        route = await p._mqClient.getTopicRouteInfoFromNameServer(this.topic, 3000).catch(log);
        if (!route) await sleep(10);
      }
    })();
    await inTime(`the route of ${this.topic}`, asking);
    return route.queueDatas.reduce((sum, q) => sum + q.writeQueueNums, 0);
  }

  async sendAll(p, samples) {
    for (const s of samples) await sendOne(p, s.message(this.topic));
  }

  // Sends markers until each queue has one and waits until all of them have arrived. A queue
  // is delivered in order, and the client hands out and commits one message at a time, so
  // whatever was to come before the markers has come, and is recorded, by then: this is how
  // a scenario proves that something does NOT arrive.
  async fence(sink, tag) {
    const p = await this.producer();
    const count = await this.queueCount(p);
    const token = this.nextInstance();
    const queues = new Set();
    await inTime('a fence on each queue', (async () => {
      while (queues.size < count) {
        const m = new Message(this.topic, tag, 'fence');
        m.properties[FENCE] = token;
        const q = (await sendOne(p, m)).messageQueue;
        queues.add(`${q.brokerName}/${q.queueId}`); // numbers repeat from broker to broker
      }
    })());
    await waitFor('the fences of all queues', () => sink.fences(token) === count);
  }
}

async function sendOne(p, m) {
  const result = await inTime('a send', p.send(m));
  if (result.sendStatus !== SEND_OK) throw new Error(`send status ${result.sendStatus}`);
  return result;
}

// ---- messages ---------------------------------------------------------------

// Content that compression does not shrink, a pure function of the seed (xorshift32).
function noise(seed, length) {
  const out = Buffer.alloc(length);
  let x = seed + 0x9e3779b9 | 0;
  for (let i = 0; i < length; i++) {
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    out[i] = x;
  }
  return out;
}

// The content of one message, a pure function of its number.
class Sample {
  constructor(i, tag) {
    this.id = `m${String(i).padStart(5, '0')}`;
    this.tag = tag;
    this.keys = [ this.id, `second-${this.id}` ];
    this.props = {
      id: this.id,
      number: String(i),
      sentence: 'two words, 100% {"json":true}; ünïcode 汉字',
    };
    this.body = [
      () => Buffer.from(`plain ${this.id}`),
      () => Buffer.from(`ünïcode 汉字 🚀 ${this.id}`),
      () => Buffer.concat([ Buffer.from(Array.from({ length: 256 }, (_, b) => b)), Buffer.from(this.id) ]),
      () => Buffer.from(`compress me ${this.id} `.repeat(1000)), // large: the client compresses it
      () => noise(i, 20000), // large, and compression does not help
    ][i % 5]();
  }

  message(topic) {
    const m = new Message(topic, this.tag, Buffer.from(this.body));
    m.keys = this.keys;
    Object.assign(m.properties, this.props);
    return m;
  }

  // What is wrong with a message that should be this sample, or null.
  difference(m) {
    if (!this.body.equals(m.body)) return `body has ${m.body.length} bytes instead of the ${this.body.length} sent, or differs`;
    if (m.tags !== this.tag) return `tag "${m.tags}" instead of "${this.tag}"`;
    if (m.keys !== this.keys.join(' ')) return `keys "${m.keys}" instead of "${this.keys.join(' ')}"`;
    for (const [ k, v ] of Object.entries(this.props)) {
      if (m.properties[k] !== v) return `property ${k} is "${m.properties[k]}" instead of "${v}"`;
    }
    if (!m.storeHost || !m.bornTimestamp || !m.storeTimestamp) return 'store host, born or store time is missing';
    if (m.reconsumeTimes !== 0) return `reconsumed ${m.reconsumeTimes} times`;
    return null;
  }
}

function makeSamples(from, to, tag) {
  return Array.from({ length: to - from }, (_, i) => new Sample(from + i, tag));
}

// ---- what arrived -------------------------------------------------------------

class Collector {
  constructor() {
    this.got = new Map();
    this.fenceQueues = new Map(); // token to the queues on which it arrived
    this.seen = 0;
  }

  add(m) {
    const token = m.properties[FENCE];
    if (token) {
      if (!this.fenceQueues.has(token)) this.fenceQueues.set(token, new Set());
      this.fenceQueues.get(token).add(`${m.storeHost}/${m.queueId}`);
      return;
    }
    const id = m.properties.id;
    if (!this.got.has(id)) this.got.set(id, []);
    const list = this.got.get(id);
    if (++this.seen % 7 === 0) {
      if (FAULT === 'lose') {
        this.got.delete(id);
        return;
      }
      if (FAULT === 'twice') list.push(m);
      if (FAULT === 'body') m.body = Buffer.concat([ m.body, Buffer.from('!') ]);
    }
    list.push(m);
  }

  fences(token) {
    return this.fenceQueues.has(token) ? this.fenceQueues.get(token).size : 0;
  }

  has(id) {
    return this.got.has(id);
  }

  // The number of different messages that arrived.
  get distinct() {
    return this.got.size;
  }

  // Waits until each of the samples has arrived at least once.
  async waitAll(samples) {
    const missing = () => samples.filter(s => !this.has(s.id)).map(s => s.id);
    try {
      await waitFor('messages', () => missing().length === 0);
    } catch (err) {
      const ids = missing();
      throw new Error(`${err.message}: ${ids.length} of ${samples.length} did not arrive: ${some(ids)}`);
    }
  }

  // Checks that the samples arrived once each, unchanged, and nothing else did.
  exactly(samples) {
    const expected = new Set(samples.map(s => s.id));
    const problems = [];
    for (const s of samples) {
      const list = this.got.get(s.id) || [];
      if (list.length !== 1) problems.push(`${s.id} arrived ${list.length} times`);
      for (const m of list) {
        const difference = s.difference(m);
        if (difference) problems.push(`${s.id}: ${difference}`);
      }
    }
    for (const [ id, list ] of this.got) {
      if (!expected.has(id)) problems.push(`"${id}" was not expected (${list.length} times)`);
    }
    if (problems.length) throw new Error(`${problems.length} problems: ${some(problems.sort())}`);
  }

  // A view that is limited to the given samples.
  only(samples) {
    const view = new Collector();
    for (const s of samples) {
      if (this.got.has(s.id)) view.got.set(s.id, this.got.get(s.id));
    }
    return view;
  }
}

function some(list) {
  return list.length > 5 ? `${list.slice(0, 5).join(', ')}, ...` : list.join(', ');
}

module.exports = { Kit, Collector, Sample, makeSamples, sendOne, inTime, waitFor, startInnerProducer, WAIT_MS };
