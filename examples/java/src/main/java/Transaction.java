// SPDX-License-Identifier: Apache-2.0

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Three orders: one is committed, one rolled back, one committed when the broker asks (after transactionTimeOut, 6 s). */
public final class Transaction {
    private static final String NAME_SERVER = "127.0.0.1:9876";

    public static void main(String[] args) throws Exception {
        Map<String, LocalTransactionState> database = new ConcurrentHashMap<>();
        TransactionMQProducer producer = new TransactionMQProducer("PID_example_java_transaction");
        producer.setNamesrvAddr(NAME_SERVER);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object fate) {
                database.put(message.getKeys(), LocalTransactionState.COMMIT_MESSAGE);
                return (LocalTransactionState) fate;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                System.out.println("asked about " + message.getKeys());
                return database.getOrDefault(message.getKeys(), LocalTransactionState.ROLLBACK_MESSAGE);
            }
        });
        producer.start();
        LocalTransactionState[] fates = {
            LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE, LocalTransactionState.UNKNOW,
        };
        for (LocalTransactionState fate : fates) {
            Message message = new Message("ExampleJavaTransaction", "", "order-" + fate, ("order " + fate).getBytes());
            System.out.println("sent " + producer.sendMessageInTransaction(message, fate).getMsgId() + ", " + fate);
        }

        CountDownLatch expected = new CountDownLatch(2);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("GID_example_java_transaction");
        consumer.setNamesrvAddr(NAME_SERVER);
        consumer.subscribe("ExampleJavaTransaction", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(m -> {
                System.out.println("got " + new String(m.getBody()));
                expected.countDown();
            });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean arrived = expected.await(60, TimeUnit.SECONDS);
        consumer.shutdown();
        producer.shutdown();
        if (!arrived) throw new IllegalStateException("an order did not arrive");
    }
}
