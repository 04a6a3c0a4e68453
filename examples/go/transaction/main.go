// SPDX-License-Identifier: Apache-2.0

// Three orders: one is committed, one rolled back, one committed when the broker asks (after transactionTimeOut, 6 s).
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type orders struct{}

func (orders) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	switch m.GetProperty("fate") {
	case "commit":
		return primitive.CommitMessageState
	case "roll back":
		return primitive.RollbackMessageState
	}
	return primitive.UnkonwnState
}

func (orders) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	fmt.Println("asked about", string(m.Body))
	return primitive.CommitMessageState
}

func main() {
	rlog.SetLogLevel("error")
	servers := primitive.NewPassthroughResolver([]string{"127.0.0.1:9876"})
	p, err := rocketmq.NewTransactionProducer(orders{}, producer.WithNsResolver(servers),
		producer.WithGroupName("PID_example_go_transaction"))
	check(err)
	check(p.Start())
	for _, fate := range []string{"commit", "roll back", "ask later"} {
		m := primitive.NewMessage("ExampleGoTransaction", []byte("order: "+fate))
		m.WithProperty("fate", fate)
		result, err := p.SendMessageInTransaction(context.Background(), m)
		check(err)
		fmt.Println("sent", result.MsgID, fate)
	}

	arrived := make(chan string, 16)
	c, err := rocketmq.NewPushConsumer(consumer.WithNsResolver(servers), consumer.WithGroupName("GID_example_go_transaction"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(err)
	all := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	check(c.Subscribe("ExampleGoTransaction", all, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			arrived <- "got " + string(m.Body)
		}
		return consumer.ConsumeSuccess, nil
	}))
	check(c.Start())
	for range 2 {
		select {
		case line := <-arrived:
			fmt.Println(line)
		case <-time.After(time.Minute):
			log.Fatal("an order did not arrive")
		}
	}
	check(c.Shutdown())
	check(p.Shutdown())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
