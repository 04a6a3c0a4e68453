// SPDX-License-Identifier: Apache-2.0

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** Sends three orders and consumes those with one tag. */
public final class PushConsumer {
    private static final String NAME_SERVER = "127.0.0.1:9876";

    public static void main(String[] args) throws Exception {
        CountDownLatch expected = new CountDownLatch(2);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("GID_example_java");
        consumer.setNamesrvAddr(NAME_SERVER);
        consumer.subscribe("ExampleJava", "paid");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(m -> {
                System.out.println("got " + new String(m.getBody()) + " with tag " + m.getTags());
                expected.countDown();
            });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();

        DefaultMQProducer producer = new DefaultMQProducer("PID_example_java");
        producer.setNamesrvAddr(NAME_SERVER);
        producer.start();
        String[] tags = {"paid", "open", "paid"};
        for (int number = 0; number < tags.length; number++) {
            SendResult result = producer.send(new Message("ExampleJava", tags[number], ("order " + number).getBytes()));
            System.out.println("sent " + result.getMsgId() + " to " + result.getMessageQueue() + " at offset " + result.getQueueOffset());
        }
        producer.shutdown();

        boolean arrived = expected.await(60, TimeUnit.SECONDS);
        consumer.shutdown();
        if (!arrived) throw new IllegalStateException("an order did not arrive");
    }
}
