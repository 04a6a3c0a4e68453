// SPDX-License-Identifier: Apache-2.0

// Sends three orders and consumes those with one tag.
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

func main() {
	rlog.SetLogLevel("error")
	servers := primitive.NamesrvAddr{"127.0.0.1:9876"}
	p, err := rocketmq.NewProducer(producer.WithNameServer(servers), producer.WithGroupName("PID_example_go"))
	check(err)
	check(p.Start())
	for number, tag := range []string{"paid", "open", "paid"} {
		m := primitive.NewMessage("ExampleGo", []byte(fmt.Sprintf("order %d", number))).WithTag(tag)
		result, err := p.SendSync(context.Background(), m)
		check(err)
		fmt.Println("sent", result.MsgID, "to", result.MessageQueue, "at offset", result.QueueOffset)
	}
	check(p.Shutdown())

	arrived := make(chan string, 16)
	c, err := rocketmq.NewPushConsumer(consumer.WithNameServer(servers), consumer.WithGroupName("GID_example_go"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(err)
	paid := consumer.MessageSelector{Type: consumer.TAG, Expression: "paid"}
	check(c.Subscribe("ExampleGo", paid, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			arrived <- fmt.Sprintf("got %s with tag %s", m.Body, m.GetTags())
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
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
