// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const orderProperty = "order"

// decisions is a producer that decides two of three messages by itself, and every third when it is asked.
type decisions struct {
	mu    sync.Mutex
	asked map[int]int
	topic string
	wrong string
}

func firstDecision(order int) primitive.LocalTransactionState {
	switch order % 3 {
	case 0:
		return primitive.CommitMessageState
	case 1:
		return primitive.RollbackMessageState
	default:
		return primitive.UnkonwnState
	}
}

func laterDecision(order int) primitive.LocalTransactionState {
	if order%2 == 0 {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func orderOf(m *primitive.Message) int {
	order, err := strconv.Atoi(m.GetProperty(orderProperty))
	if err != nil {
		return -1
	}
	return order
}

func (d *decisions) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	return firstDecision(orderOf(m))
}

func (d *decisions) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	d.mu.Lock()
	defer d.mu.Unlock()
	order := orderOf(&m.Message)
	d.asked[order]++
	if m.Topic != d.topic {
		d.wrong = fmt.Sprintf("the check of message %d has the topic %s", order, m.Topic)
	}
	return laterDecision(order)
}

func (d *decisions) askedFor(orders []int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, order := range orders {
		if d.asked[order] == 0 {
			return false
		}
	}
	return true
}

// transaction sends half messages: what is committed arrives, at once or after a check, and nothing else does.
func transaction(t *kit) error {
	listener := &decisions{asked: map[int]int{}, topic: t.topic}
	p, err := rocketmq.NewTransactionProducer(listener,
		producer.WithNsResolver(t.resolver()),
		producer.WithGroupName("P"+t.group),
		producer.WithInstanceName(t.nextInstance()),
		producer.WithRetry(2))
	if err != nil {
		return err
	}
	if err := p.Start(); err != nil {
		return fmt.Errorf("producer start: %w", err)
	}
	t.onClose(func() { p.Shutdown() })
	var committed []sample
	var open []int
	samples := makeSamples(0, 30, "TagA")
	for order, s := range samples {
		m := s.message(t.topic)
		m.WithProperty(orderProperty, strconv.Itoa(order))
		result, err := p.SendMessageInTransaction(context.Background(), m)
		if err != nil {
			return fmt.Errorf("send %s: %w", s.id, err)
		}
		if result.Status != primitive.SendOK || result.State != firstDecision(order) {
			return fmt.Errorf("send %s: status %d, state %d", s.id, result.Status, result.State)
		}
		last := result.State
		if last == primitive.UnkonwnState {
			open = append(open, order)
			last = laterDecision(order)
		}
		if last == primitive.CommitMessageState {
			committed = append(committed, s)
		}
	}
	sink := newCollector()
	if _, err := t.consumer(sink, "TagA"); err != nil {
		return err
	}
	if err := waitFor("checks of all open messages", func() bool { return listener.askedFor(open) }); err != nil {
		return err
	}
	if err := sink.waitAll(committed); err != nil {
		return err
	}
	if err := t.fence(sink, "TagA"); err != nil {
		return err
	}
	if err := sink.exactly(committed); err != nil {
		return err
	}
	listener.mu.Lock()
	defer listener.mu.Unlock()
	if len(listener.asked) != len(open) || listener.wrong != "" {
		return fmt.Errorf("asked %v, open were %v; %s", listener.asked, open, listener.wrong)
	}
	return t.passed("%d of %d committed, %d of all after a check", len(committed), len(samples), len(open))
}
