// SPDX-License-Identifier: Apache-2.0
'use strict';

const { Producer, Message } = require('ali-ons');
const ons = require('ali-ons');
const { Collector, Sample, makeSamples, sendOne, inTime, waitFor, WAIT_MS } = require('./kit');

// Thrown by a scenario for a feature that the client itself does not have.
class Skip extends Error {}

// ---- sending to a topic that does not exist yet ---------------------------------

// Runs one way of sending and then consumes everything from the start.
async function sendAndVerify(kit, count, send) {
  const samples = makeSamples(0, count, 'TagA');
  const p = await kit.producerForNewTopic();
  await send(p, samples);
  await consumeExactly(kit, samples, '*', 'TagA');
  return `${count} messages to a new topic arrived once each, unchanged`;
}

// Starts a consumer on a topic with messages and checks what it gets.
async function consumeExactly(kit, samples, expression, fenceTag) {
  const sink = new Collector();
  const stop = await kit.consumer(sink, expression);
  await sink.waitAll(samples);
  await kit.fence(sink, fenceTag);
  await stop();
  sink.exactly(samples);
}

async function sendSync(kit) {
  // A topic that does not exist must be refused with TOPIC_NOT_EXIST.
  const p = await kit.producer();
  const refused = await inTime('the answer', p.send(new Message(kit.topic, 'TagA', 'x'))).then(() => null, err => err);
  if (!refused || refused.code !== 17) throw new Error(`route of a missing topic: ${refused} instead of code 17`);
  return sendAndVerify(kit, 50, (producer, samples) => kit.sendAll(producer, samples));
}

async function sendAsync(kit) {
  // All are on their way at the same time, on one connection.
  return sendAndVerify(kit, 50, (p, samples) => Promise.all(samples.map(s => sendOne(p, s.message(kit.topic)))));
}

// The two features below are missing: a method by that name would show that this changed.
function missing(owner, names, reason) {
  const found = names.filter(name => name in owner);
  if (found.length) throw new Error(`the client has ${found.join(', ')} now: test it`);
  throw new Skip(reason);
}

async function sendOneway() {
  missing(Producer.prototype, [ 'sendOneway', 'sendOneWay' ], 'ali-ons has no one-way send');
}

async function sendBatch() {
  missing(Producer.prototype, [ 'sendBatch', 'sendMessages' ], 'ali-ons has no batch send');
}

async function pull() {
  missing(ons, [ 'PullConsumer', 'LitePullConsumer' ], 'ali-ons has no pull consumer');
}

// ---- push consumers -------------------------------------------------------------

async function pushAll(kit) {
  // Half of the messages wait for the consumer, the others come while it is held in a long poll.
  const p = await kit.producerForNewTopic();
  const early = makeSamples(0, 40, 'TagA');
  const late = makeSamples(40, 80, 'TagB');
  await kit.sendAll(p, early);
  const sink = new Collector();
  const stop = await kit.consumer(sink, '*');
  await sink.waitAll(early);
  await kit.sendAll(p, late);
  await sink.waitAll(late);
  await kit.fence(sink, 'TagA');
  await stop();
  sink.exactly([ ...early, ...late ]);
  return '80 messages, 40 of them sent to a waiting consumer';
}

const pushTag = kit => pushFiltered(kit, 'Aa', [ 'Aa' ]);
const pushTags = kit => pushFiltered(kit, 'Aa || TagC', [ 'Aa', 'TagC' ]);

// Sends messages of four tags and expects those of the wanted tags only. "Aa" and "BB" have
// the same Java hash code, so a filter by the hash alone is not enough.
async function pushFiltered(kit, expression, wanted) {
  const p = await kit.producerForNewTopic();
  const tags = [ 'Aa', 'BB', 'TagC', 'TagD' ];
  const expected = [];
  for (let i = 0; i < 80; i++) {
    // The shift by i/4 spreads each tag over all queues.
    const s = new Sample(i, tags[(i + Math.floor(i / 4)) % 4]);
    await kit.sendAll(p, [ s ]);
    if (wanted.includes(s.tag)) expected.push(s);
  }
  await consumeExactly(kit, expected, expression, wanted[0]);
  return `"${expression}" got its ${expected.length} of 80 messages`;
}

// ---- consumer groups --------------------------------------------------------------

// Says which queues the messages of a round reached `a` and `b` on, as in "0,1|2,3", or
// returns '' unless each message is at one consumer only and the queues are shared evenly.
function evenSplit(round, count, a, b) {
  const queues = sink => round.filter(s => sink.has(s.id)).map(s => sink.got.get(s.id)[0].queueId).sort();
  const [ atA, atB ] = [ queues(a), queues(b) ];
  const even = atA.length + atB.length === count && atA.length > 0 && atB.length > 0 &&
    Math.abs(atA.length - atB.length) <= 1;
  return even ? `${atA}|${atB}` : '';
}

async function rebalance(kit) {
  const p = await kit.producerForNewTopic();
  const first = makeSamples(0, 4, 'TagA');
  await kit.sendAll(p, first);
  const a = new Collector();
  const b = new Collector();
  await kit.consumer(a, '*');
  await a.waitAll(first);
  const stopB = await kit.consumer(b, '*');

  // Send rounds of one message to each queue until several in a row are shared out evenly and
  // in the same way. The earlier ones are looked at again, so a late second copy is noticed.
  // The client sends round robin: as many messages as there are queues go to all of them.
  const count = await kit.queueCount(p);
  let next = 1000;
  let rounds = [];
  const end = Date.now() + WAIT_MS;
  while (rounds.length < 5) {
    if (Date.now() > end) throw new Error(`after ${WAIT_MS / 1000}s the consumers still do not share ${count} queues`);
    const round = makeSamples(next, next + count, 'TagA');
    next += count;
    await kit.sendAll(p, round);
    await waitFor('a round of messages at either consumer', () => round.every(s => a.has(s.id) || b.has(s.id)));
    rounds.push(round);
    const split = evenSplit(round, count, a, b);
    if (!split || rounds.some(r => evenSplit(r, count, a, b) !== split)) rounds = [];
  }
  const shared = evenSplit(rounds[0], count, a, b);

  await stopB();
  const beforeB = b.distinct;
  const rest = makeSamples(100, 140, 'TagA');
  await kit.sendAll(p, rest);
  await a.waitAll(rest);
  await kit.fence(a, 'TagA');
  if (b.distinct !== beforeB) throw new Error('the consumer that left got messages');
  // Only the messages sent after the change count here: a change of owner may repeat older ones.
  a.only(rest).exactly(rest);
  return `queues shared ${shared} in 5 rounds, then all 40 messages at the one that stayed`;
}

// Sends and consumes the samples and leaves with the offsets committed.
async function consumeFirstPart(kit, p, samples) {
  await kit.sendAll(p, samples);
  await consumeExactly(kit, samples, '*', 'TagA');
}

async function restartConsumer(kit) {
  const p = await kit.producerForNewTopic();
  const meanwhile = makeSamples(40, 60, 'TagA');
  await consumeFirstPart(kit, p, makeSamples(0, 40, 'TagA'));
  await kit.sendAll(p, meanwhile);
  await consumeExactly(kit, meanwhile, '*', 'TagA');
  return '40 before, then exactly the 20 that came while the group was away';
}

// ---- restart of the broker, in two processes ----------------------------------------

async function beforeRestart(kit) {
  const p = await kit.producerForNewTopic();
  await consumeFirstPart(kit, p, makeSamples(0, 60, 'TagA'));
  await kit.sendAll(p, makeSamples(60, 100, 'TagA'));
  return `sent 100, consumed 60, left 40; topic ${kit.topic}, group ${kit.group}`;
}

async function afterRestart(kit) {
  await consumeExactly(kit, makeSamples(60, 100, 'TagA'), '*', 'TagA');
  return 'exactly the 40 messages that were left arrived';
}

// The two restart halves need a broker restart between them, so only the runner calls them.
const scenarios = [
  { name: 'send_sync', inAll: true, run: sendSync },
  { name: 'send_async', inAll: true, run: sendAsync },
  { name: 'send_oneway', inAll: true, run: sendOneway },
  { name: 'send_batch', inAll: true, run: sendBatch },
  { name: 'push_all', inAll: true, run: pushAll },
  { name: 'push_tag', inAll: true, run: pushTag },
  { name: 'push_tags', inAll: true, run: pushTags },
  { name: 'rebalance', inAll: true, run: rebalance },
  { name: 'restart_consumer', inAll: true, run: restartConsumer },
  { name: 'pull', inAll: true, run: pull },
  { name: 'before_restart', inAll: false, run: beforeRestart },
  { name: 'after_restart', inAll: false, run: afterRestart },
];

module.exports = { scenarios, Skip };
