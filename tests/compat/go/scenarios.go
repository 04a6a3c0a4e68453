// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// ---- sending to a topic that does not exist yet ---------------------------------

// sendAndVerify runs one way of sending and then consumes everything from the start.
func sendAndVerify(t *kit, count int, send func(p rocketmq.Producer, samples []sample) error) error {
	samples := makeSamples(0, count, "TagA")
	p, err := t.producer()
	if err != nil {
		return err
	}
	if err := send(p, samples); err != nil {
		return err
	}
	if err := consumeExactly(t, samples, "*", "TagA"); err != nil {
		return err
	}
	return t.passed("%d messages to a new topic arrived once each, unchanged", count)
}

// consumeExactly starts a consumer on a topic with messages and checks what it gets.
func consumeExactly(t *kit, samples []sample, expression, fenceTag string) error {
	if _, err := t.queues(); err != nil {
		return err
	}
	sink := newCollector()
	stop, err := t.consumer(sink, expression)
	if err != nil {
		return err
	}
	if err := sink.waitAll(samples); err != nil {
		return err
	}
	if err := t.fence(sink, fenceTag); err != nil {
		return err
	}
	stop()
	return sink.exactly(samples)
}

func sendSync(t *kit) error {
	return sendAndVerify(t, 50, t.sendAll)
}

func sendAsync(t *kit) error {
	return sendAndVerify(t, 50, func(p rocketmq.Producer, samples []sample) error {
		var mu sync.Mutex
		answered, failures := 0, []string(nil)
		for _, s := range samples {
			err := p.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
				mu.Lock()
				defer mu.Unlock()
				answered++
				if err != nil {
					failures = append(failures, fmt.Sprintf("%s: %v", s.id, err))
				} else if result.Status != primitive.SendOK {
					failures = append(failures, fmt.Sprintf("%s: status %d", s.id, result.Status))
				}
			}, s.message(t.topic))
			if err != nil {
				return fmt.Errorf("send %s: %w", s.id, err)
			}
		}
		err := waitFor("all callbacks", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return answered == len(samples)
		})
		mu.Lock()
		defer mu.Unlock()
		if err == nil && len(failures) > 0 {
			err = fmt.Errorf("%d sends failed: %s", len(failures), some(failures))
		}
		return err
	})
}

func sendOneway(t *kit) error {
	return sendAndVerify(t, 50, func(p rocketmq.Producer, samples []sample) error {
		for _, s := range samples {
			if err := p.SendOneWay(context.Background(), s.message(t.topic)); err != nil {
				return fmt.Errorf("send %s: %w", s.id, err)
			}
		}
		return nil
	})
}

func sendBatch(t *kit) error {
	return sendAndVerify(t, 50, func(p rocketmq.Producer, samples []sample) error {
		for len(samples) > 0 {
			var batch []*primitive.Message
			for _, s := range samples[:10] {
				batch = append(batch, s.message(t.topic))
			}
			result, err := p.SendSync(context.Background(), batch...)
			if err != nil {
				return fmt.Errorf("send batch: %w", err)
			}
			if result.Status != primitive.SendOK {
				return fmt.Errorf("send batch: status %d", result.Status)
			}
			samples = samples[10:]
		}
		return nil
	})
}

// ---- push consumers -------------------------------------------------------------

func pushAll(t *kit) error {
	// Half of the messages wait for the consumer, the others come while it is held in a long poll.
	p, err := t.producer()
	if err != nil {
		return err
	}
	early, late := makeSamples(0, 40, "TagA"), makeSamples(40, 80, "TagB")
	if err := t.sendAll(p, early); err != nil {
		return err
	}
	if _, err := t.queues(); err != nil {
		return err
	}
	sink := newCollector()
	stop, err := t.consumer(sink, "*")
	if err != nil {
		return err
	}
	if err := sink.waitAll(early); err != nil {
		return err
	}
	if err := t.sendAll(p, late); err != nil {
		return err
	}
	if err := sink.waitAll(late); err != nil {
		return err
	}
	if err := t.fence(sink, "TagA"); err != nil {
		return err
	}
	stop()
	if err := sink.exactly(append(early, late...)); err != nil {
		return err
	}
	return t.passed("80 messages, 40 of them sent to a waiting consumer")
}

func pushTag(t *kit) error { return pushFiltered(t, "Aa", "Aa") }

func pushTags(t *kit) error { return pushFiltered(t, "Aa || TagC", "Aa", "TagC") }

// pushFiltered sends messages of four tags and expects those of the wanted tags only. "Aa"
// and "BB" have the same Java hash code, so a filter by the hash alone is not enough.
func pushFiltered(t *kit, expression string, wanted ...string) error {
	p, err := t.producer()
	if err != nil {
		return err
	}
	// The shift by i/4 spreads each tag over all queues.
	tags := []string{"Aa", "BB", "TagC", "TagD"}
	var expected []sample
	for i := 0; i < 80; i++ {
		s := makeSample(i, tags[(i+i/4)%4])
		if err := t.sendAll(p, []sample{s}); err != nil {
			return err
		}
		for _, tag := range wanted {
			if s.tag == tag {
				expected = append(expected, s)
			}
		}
	}
	if err := consumeExactly(t, expected, expression, wanted[0]); err != nil {
		return err
	}
	return t.passed("%q got its %d of 80 messages", expression, len(expected))
}

// ---- consumer groups --------------------------------------------------------------

// evenSplit says on which queues the messages of a round (one for each queue) reached a and b,
// as in "[0 1]|[2 3]". It returns "" unless each message is at one consumer only and the queues
// are shared evenly.
func evenSplit(round []sample, a, b *collector) string {
	var atA, atB []int
	for queue, s := range round {
		if a.has(s.id) {
			atA = append(atA, queue)
		}
		if b.has(s.id) {
			atB = append(atB, queue)
		}
	}
	difference := len(atA) - len(atB)
	if len(atA)+len(atB) != len(round) || len(atA) == 0 || len(atB) == 0 || difference > 1 || difference < -1 {
		return ""
	}
	return fmt.Sprintf("%v|%v", atA, atB)
}

func rebalance(t *kit) error {
	p, err := t.producer()
	if err != nil {
		return err
	}
	first := makeSamples(0, 4, "TagA")
	if err := t.sendAll(p, first); err != nil {
		return err
	}
	queues, err := t.queues()
	if err != nil {
		return err
	}
	byQueue, err := t.producer(producer.WithQueueSelector(producer.NewManualQueueSelector()))
	if err != nil {
		return err
	}
	a, b := newCollector(), newCollector()
	if _, err := t.consumer(a, "*", oneAtATime()); err != nil {
		return err
	}
	if err := a.waitAll(first); err != nil {
		return err
	}
	stopB, err := t.consumer(b, "*", oneAtATime())
	if err != nil {
		return err
	}

	// Send rounds of one message to each queue until several in a row are shared out evenly and
	// in the same way. The earlier ones are looked at again, so a late second copy is noticed.
	next := 1000
	var rounds [][]sample
	end := time.Now().Add(waitLimit)
	for len(rounds) < 5 {
		if time.Now().After(end) {
			return fmt.Errorf("after %s the consumers still do not share %d queues", waitLimit, len(queues))
		}
		var round []sample
		for _, q := range queues {
			s := makeSample(next, "TagA")
			next++
			m := s.message(t.topic)
			m.Queue = q
			if err := sendOne(byQueue, m); err != nil {
				return fmt.Errorf("send %s: %w", s.id, err)
			}
			round = append(round, s)
		}
		err := waitFor("a round of messages at either consumer", func() bool {
			for _, s := range round {
				if !a.has(s.id) && !b.has(s.id) {
					return false
				}
			}
			return true
		})
		if err != nil {
			return err
		}
		rounds = append(rounds, round)
		split := evenSplit(round, a, b)
		for _, r := range rounds {
			if split == "" || evenSplit(r, a, b) != split {
				rounds = nil
				break
			}
		}
	}
	shared := evenSplit(rounds[0], a, b)

	stopB()
	beforeB := b.distinct()
	rest := makeSamples(100, 140, "TagA")
	if err := t.sendAll(p, rest); err != nil {
		return err
	}
	if err := a.waitAll(rest); err != nil {
		return err
	}
	if err := t.fence(a, "TagA"); err != nil {
		return err
	}
	if b.distinct() != beforeB {
		return fmt.Errorf("the consumer that left got messages")
	}
	// Only the messages sent after the change count here: a change of owner may repeat older ones.
	if err := a.only(rest).exactly(rest); err != nil {
		return err
	}
	return t.passed("queues shared %s in 5 rounds, then all 40 messages at the one that stayed", shared)
}

func restartConsumer(t *kit) error {
	p, err := t.producer()
	if err != nil {
		return err
	}
	before, meanwhile := makeSamples(0, 40, "TagA"), makeSamples(40, 60, "TagA")
	if err := consumeFirstPart(t, p, before); err != nil {
		return err
	}
	if err := t.sendAll(p, meanwhile); err != nil {
		return err
	}
	if err := consumeExactly(t, meanwhile, "*", "TagA"); err != nil {
		return err
	}
	return t.passed("40 before, then exactly the 20 that came while the group was away")
}

// consumeFirstPart sends and consumes the samples and leaves with the offsets committed.
func consumeFirstPart(t *kit, p rocketmq.Producer, samples []sample) error {
	if err := t.sendAll(p, samples); err != nil {
		return err
	}
	if _, err := t.queues(); err != nil {
		return err
	}
	sink := newCollector()
	stop, err := t.consumer(sink, "*", oneAtATime())
	if err != nil {
		return err
	}
	if err := sink.waitAll(samples); err != nil {
		return err
	}
	if err := t.fence(sink, "TagA"); err != nil {
		return err
	}
	stop()
	return sink.exactly(samples)
}

// ---- restart of the broker, in two processes ----------------------------------------

func beforeRestart(t *kit) error {
	p, err := t.producer()
	if err != nil {
		return err
	}
	if err := consumeFirstPart(t, p, makeSamples(0, 60, "TagA")); err != nil {
		return err
	}
	if err := t.sendAll(p, makeSamples(60, 100, "TagA")); err != nil {
		return err
	}
	return t.passed("sent 100, consumed 60, left 40; topic %s, group %s", t.topic, t.group)
}

func afterRestart(t *kit) error {
	if err := consumeExactly(t, makeSamples(60, 100, "TagA"), "*", "TagA"); err != nil {
		return err
	}
	return t.passed("exactly the 40 messages that were left arrived")
}

// ---- pull consumer ------------------------------------------------------------------

func pull(t *kit) error {
	p, err := t.producer()
	if err != nil {
		return err
	}
	samples := makeSamples(0, 40, "TagA")
	ends, err := t.sendCounted(p, samples)
	if err != nil {
		return err
	}
	queues, err := t.queues()
	if err != nil {
		return err
	}
	if err := pullByOffset(t, queues, ends, samples); err != nil {
		return fmt.Errorf("pull by offset: %w", err)
	}
	if err := poll(t, samples); err != nil {
		return fmt.Errorf("poll: %w", err)
	}
	later := makeSamples(40, 60, "TagA")
	if err := t.sendAll(p, later); err != nil {
		return err
	}
	if err := poll(t, later); err != nil {
		return fmt.Errorf("poll after a restart: %w", err)
	}
	return t.passed("40 by offset, 40 by poll, and exactly the 20 new ones after a restart of the consumer")
}

func (t *kit) pullConsumer(group string) (rocketmq.PullConsumer, func(), error) {
	c, err := rocketmq.NewPullConsumer(
		consumer.WithNsResolver(t.resolver()),
		consumer.WithGroupName(group),
		consumer.WithInstance(t.nextInstance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithPullBatchSize(10),
	)
	if err != nil {
		return nil, nil, err
	}
	if err := c.Subscribe(t.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}); err != nil {
		return nil, nil, err
	}
	if err := c.Start(); err != nil {
		return nil, nil, fmt.Errorf("start: %w", err)
	}
	return c, t.onClose(func() { c.Shutdown() }), nil
}

// pullByOffset reads each queue from its start to the end that the sends' answers told, a few messages at a time, without
// any group offset.
func pullByOffset(t *kit, queues []*primitive.MessageQueue, ends map[string]int64, samples []sample) error {
	c, stop, err := t.pullConsumer(t.group + "_offset")
	if err != nil {
		return err
	}
	sink := newCollector()
	for _, q := range queues {
		end := ends[queueName(q)]
		for offset := int64(0); offset < end; {
			ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
			result, err := c.PullFrom(ctx, q, offset, 3)
			cancel()
			if err != nil {
				return fmt.Errorf("queue %d offset %d: %w", q.QueueId, offset, err)
			}
			if result.Status != primitive.PullFound {
				return fmt.Errorf("queue %d offset %d of %s, below the end %d: status %d, answered range %d to %d",
					q.QueueId, offset, q.BrokerName, end, result.Status, result.MinOffset, result.MaxOffset)
			}
			for i, m := range result.GetMessageExts() {
				if m.QueueOffset != offset+int64(i) {
					return fmt.Errorf("queue %d: offset %d came where %d was due", q.QueueId, m.QueueOffset, offset+int64(i))
				}
				sink.add(m)
			}
			offset = result.NextBeginOffset
		}
	}
	stop()
	return sink.exactly(samples)
}

// poll takes messages as a member of the group until all samples have come, and acknowledges them.
func poll(t *kit, samples []sample) error {
	c, stop, err := t.pullConsumer(t.group)
	if err != nil {
		return err
	}
	sink := newCollector()
	take := func() {
		request, err := c.Poll(context.Background(), 100*time.Millisecond)
		if err != nil {
			return // nothing new
		}
		for _, m := range request.GetMsgList() {
			sink.add(m)
		}
		c.ACK(context.Background(), request, consumer.ConsumeSuccess)
	}
	err = waitFor("polled messages", func() bool {
		take()
		for _, s := range samples {
			if !sink.has(s.id) {
				return false
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	// The fences arrive by Poll as well.
	done := make(chan error, 1)
	go func() { done <- t.fence(sink, "TagA") }()
	for fenced := false; !fenced; {
		select {
		case err := <-done:
			if err != nil {
				return err
			}
			fenced = true
		default:
			take()
		}
	}
	if err := c.PersistOffset(context.Background(), t.topic); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	stop()
	return sink.exactly(samples)
}
