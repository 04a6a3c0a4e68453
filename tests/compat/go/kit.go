// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// kit is what a scenario works with: names, clients to close, messages and checks.
type kit struct {
	namesrv  string
	topic    string
	group    string
	instance string
	seq      int
	detail   string
	closers  []func()
}

func newKit(name, namesrv, run string) *kit {
	// Both halves of the restart test share one topic and one group.
	if name == "before_restart" || name == "after_restart" {
		name = "broker_restart"
	}
	return &kit{
		namesrv:  namesrv,
		topic:    "compat_go_" + run + "_" + name,
		group:    "GID_compat_go_" + run + "_" + name,
		instance: fmt.Sprintf("%s-%s-%d", run, name, os.Getpid()),
	}
}

func (t *kit) passed(format string, args ...any) error {
	t.detail = fmt.Sprintf(format, args...)
	return nil
}

// onClose registers a clean-up that runs once, at the latest when the scenario ends.
func (t *kit) onClose(f func()) (now func()) {
	var once sync.Once
	now = func() { once.Do(f) }
	t.closers = append(t.closers, now)
	return now
}

func (t *kit) close() {
	for i := len(t.closers) - 1; i >= 0; i-- {
		t.closers[i]()
	}
}

// nextInstance gives each client an id of its own, as separate processes would have.
func (t *kit) nextInstance() string {
	t.seq++
	return fmt.Sprintf("%s-%d", t.instance, t.seq)
}

func (t *kit) resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{t.namesrv})
}

func (t *kit) producer(options ...producer.Option) (rocketmq.Producer, error) {
	options = append([]producer.Option{
		producer.WithNsResolver(t.resolver()),
		producer.WithGroupName("P" + t.group),
		producer.WithInstanceName(t.nextInstance()),
		producer.WithRetry(2),
	}, options...)
	p, err := rocketmq.NewProducer(options...)
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, fmt.Errorf("producer start: %w", err)
	}
	t.onClose(func() { p.Shutdown() })
	return p, nil
}

// queues returns the queues of the topic, once the name server knows it.
func (t *kit) queues() ([]*primitive.MessageQueue, error) {
	a, err := admin.NewAdmin(admin.WithResolver(t.resolver()))
	if err != nil {
		return nil, err
	}
	defer a.Close()
	var queues []*primitive.MessageQueue
	err = waitFor("the route of "+t.topic, func() bool {
		found, err := a.FetchPublishMessageQueues(context.Background(), t.topic)
		queues = found
		return err == nil && len(found) > 0
	})
	return queues, err
}

// consumer starts a push consumer; the returned function stops it.
func (t *kit) consumer(sink *collector, expression string, options ...consumer.Option) (stop func(), err error) {
	options = append([]consumer.Option{
		consumer.WithNsResolver(t.resolver()),
		consumer.WithGroupName(t.group),
		consumer.WithInstance(t.nextInstance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, options...)
	c, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return nil, err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
	err = c.Subscribe(t.topic, selector, func(_ context.Context, msgs ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range msgs {
			sink.add(m)
		}
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, fmt.Errorf("consumer start: %w", err)
	}
	return t.onClose(func() { c.Shutdown() }), nil
}

// oneAtATime makes the client commit a message before it hands out the next one, so that
// once a fence has arrived on a queue, all that came before it is consumed and recorded.
func oneAtATime() consumer.Option { return consumer.WithConsumeGoroutineNums(1) }

func waitFor(what string, condition func() bool) error {
	end := time.Now().Add(waitLimit)
	for !condition() {
		if time.Now().After(end) {
			return fmt.Errorf("waited %s for %s", waitLimit, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// ---- messages ---------------------------------------------------------------

// sample is the content of one message, a pure function of its number.
type sample struct {
	id, tag string
	body    []byte
	props   map[string]string
}

func makeSample(i int, tag string) sample {
	id := fmt.Sprintf("m%05d", i)
	s := sample{id: id, tag: tag, props: map[string]string{
		"id":       id,
		"number":   strconv.Itoa(i),
		"sentence": "two words, 100% {\"json\":true}; ünïcode 汉字",
	}}
	switch i % 5 {
	case 0:
		s.body = []byte("plain " + id)
	case 1:
		s.body = []byte("ünïcode 汉字 🚀 " + id)
	case 2: // every byte value
		for b := 0; b < 256; b++ {
			s.body = append(s.body, byte(b))
		}
		s.body = append(s.body, id...)
	case 3: // large enough for the client to compress it
		s.body = []byte(strings.Repeat("compress me "+id+" ", 1000))
	case 4: // large, and compression does not help
		s.body = make([]byte, 20000)
		rand.New(rand.NewSource(int64(i))).Read(s.body)
	}
	return s
}

func makeSamples(from, to int, tag string) []sample {
	var out []sample
	for i := from; i < to; i++ {
		out = append(out, makeSample(i, tag))
	}
	return out
}

func (s sample) message(topic string) *primitive.Message {
	m := primitive.NewMessage(topic, s.body)
	m.WithTag(s.tag)
	m.WithKeys([]string{s.id, "second-" + s.id})
	for k, v := range s.props {
		m.WithProperty(k, v)
	}
	return m
}

func (t *kit) sendAll(p rocketmq.Producer, samples []sample) error {
	for _, s := range samples {
		if err := sendOne(p, s.message(t.topic)); err != nil {
			return fmt.Errorf("send %s: %w", s.id, err)
		}
	}
	return nil
}

// sendCounted sends all samples and returns the end of each queue, by queueName, as the answers tell it.
func (t *kit) sendCounted(p rocketmq.Producer, samples []sample) (map[string]int64, error) {
	ends := map[string]int64{}
	for _, s := range samples {
		result, err := p.SendSync(context.Background(), s.message(t.topic))
		if err != nil {
			return nil, fmt.Errorf("send %s: %w", s.id, err)
		}
		if result.Status != primitive.SendOK {
			return nil, fmt.Errorf("send %s: status %d", s.id, result.Status)
		}
		ends[queueName(result.MessageQueue)] = result.QueueOffset + 1
	}
	return ends, nil
}

func queueName(q *primitive.MessageQueue) string {
	return fmt.Sprintf("%s/%d", q.BrokerName, q.QueueId)
}

func sendOne(p rocketmq.Producer, m *primitive.Message) error {
	result, err := p.SendSync(context.Background(), m)
	if err != nil {
		return err
	}
	if result.Status != primitive.SendOK {
		return fmt.Errorf("send status %d", result.Status)
	}
	return nil
}

// ---- fences -----------------------------------------------------------------

const fenceProperty = "fence"

// fence sends one marker to each queue and waits until all of them have arrived. A queue
// is delivered in order, so whatever was to come before the markers has come by then:
// this is how a scenario proves that something does NOT arrive.
func (t *kit) fence(sink *collector, tag string) error {
	queues, err := t.queues()
	if err != nil {
		return err
	}
	p, err := t.producer(producer.WithQueueSelector(producer.NewManualQueueSelector()))
	if err != nil {
		return err
	}
	token := t.nextInstance()
	for _, q := range queues {
		m := primitive.NewMessage(t.topic, []byte("fence"))
		m.WithTag(tag)
		m.WithProperty(fenceProperty, token)
		m.Queue = q
		if err := sendOne(p, m); err != nil {
			return fmt.Errorf("fence to queue %d: %w", q.QueueId, err)
		}
	}
	return waitFor("the fences of all queues", func() bool { return sink.fences(token) == len(queues) })
}

// ---- what arrived -------------------------------------------------------------

type collector struct {
	mu    sync.Mutex
	got   map[string][]*primitive.MessageExt
	fence map[string]map[string]bool // token to the queues on which it arrived
	seen  int
}

func newCollector() *collector {
	return &collector{got: map[string][]*primitive.MessageExt{}, fence: map[string]map[string]bool{}}
}

// fault breaks every seventh message that arrives, to show that the checks notice: lose, twice or body.
var fault = os.Getenv("RINGMQ_COMPAT_FAULT")

func (c *collector) add(m *primitive.MessageExt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if token := m.GetProperty(fenceProperty); token != "" {
		if c.fence[token] == nil {
			c.fence[token] = map[string]bool{}
		}
		// Queue numbers repeat from broker to broker.
		c.fence[token][fmt.Sprintf("%s/%d", m.StoreHost, m.Queue.QueueId)] = true
		return
	}
	id := m.GetProperty("id")
	c.seen++
	if c.seen%7 == 0 {
		switch fault {
		case "lose":
			return
		case "twice":
			c.got[id] = append(c.got[id], m)
		case "body":
			m.Body = append(m.Body, '!')
		}
	}
	c.got[id] = append(c.got[id], m)
}

func (c *collector) fences(token string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.fence[token])
}

// distinct is the number of different messages that arrived.
func (c *collector) distinct() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.got)
}

func (c *collector) has(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.got[id]) > 0
}

// waitAll waits until each of the samples has arrived at least once.
func (c *collector) waitAll(samples []sample) error {
	missing := func() (ids []string) {
		for _, s := range samples {
			if !c.has(s.id) {
				ids = append(ids, s.id)
			}
		}
		return ids
	}
	err := waitFor("messages", func() bool { return len(missing()) == 0 })
	if err != nil {
		ids := missing()
		return fmt.Errorf("%w: %d of %d did not arrive: %s", err, len(ids), len(samples), some(ids))
	}
	return nil
}

// exactly checks that the samples arrived once each, unchanged, and nothing else did.
func (c *collector) exactly(samples []sample) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	expected := map[string]bool{}
	var problems []string
	for _, s := range samples {
		expected[s.id] = true
		got := c.got[s.id]
		if len(got) != 1 {
			problems = append(problems, fmt.Sprintf("%s arrived %d times", s.id, len(got)))
		}
		for _, m := range got {
			if err := same(s, m); err != nil {
				problems = append(problems, fmt.Sprintf("%s: %v", s.id, err))
			}
		}
	}
	for id, got := range c.got {
		if !expected[id] {
			problems = append(problems, fmt.Sprintf("%q was not expected (%d times)", id, len(got)))
		}
	}
	if len(problems) > 0 {
		sort.Strings(problems)
		return fmt.Errorf("%d problems: %s", len(problems), some(problems))
	}
	return nil
}

func same(s sample, m *primitive.MessageExt) error {
	if !bytes.Equal(m.Body, s.body) {
		return fmt.Errorf("body has %d bytes instead of the %d sent, or differs", len(m.Body), len(s.body))
	}
	if m.GetTags() != s.tag {
		return fmt.Errorf("tag %q instead of %q", m.GetTags(), s.tag)
	}
	if keys := s.id + " second-" + s.id; m.GetKeys() != keys {
		return fmt.Errorf("keys %q instead of %q", m.GetKeys(), keys)
	}
	for k, v := range s.props {
		if m.GetProperty(k) != v {
			return fmt.Errorf("property %s is %q instead of %q", k, m.GetProperty(k), v)
		}
	}
	if m.StoreHost == "" || m.BornTimestamp == 0 || m.StoreTimestamp == 0 {
		return errors.New("store host, born or store time is missing")
	}
	if m.ReconsumeTimes != 0 {
		return fmt.Errorf("reconsumed %d times", m.ReconsumeTimes)
	}
	return nil
}

func some(list []string) string {
	if len(list) > 5 {
		return strings.Join(list[:5], ", ") + ", ..."
	}
	return strings.Join(list, ", ")
}

// only is a view of the collector that is limited to the given samples.
func (c *collector) only(samples []sample) *collector {
	c.mu.Lock()
	defer c.mu.Unlock()
	view := newCollector()
	for _, s := range samples {
		if got := c.got[s.id]; got != nil {
			view.got[s.id] = got
		}
	}
	return view
}
