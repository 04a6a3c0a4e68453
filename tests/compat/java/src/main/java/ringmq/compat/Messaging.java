// SPDX-License-Identifier: Apache-2.0
package ringmq.compat;

import static ringmq.compat.Kit.check;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** What applications use beyond sending and consuming. */
final class Messaging {
    private Messaging() {
    }

    /** Half of the messages wait for the consumer, half are sent while it holds its pulls. */
    static String sql92(Kit kit) throws Exception {
        String wanted = "(number BETWEEN 20 AND 89 AND TAGS IN ('TagA', 'TagB') AND absent IS NULL) OR fence IS NOT NULL";
        DefaultMQProducer producer = kit.producer();
        String[] tags = {"TagA", "TagB", "TagC"};
        List<Sample> all = new ArrayList<>();
        List<Sample> expected = new ArrayList<>();
        for (int i = 0; i < 120; i++) {
            Sample sample = new Sample(i, tags[i % tags.length]);
            all.add(sample);
            if (i >= 20 && i <= 89 && i % tags.length < 2) expected.add(sample);
        }
        kit.sendAll(producer, all.subList(0, 60));
        Kit.Push push = kit.push(MessageSelector.bySql(wanted));
        push.awaitAssigned(kit.queues(producer));
        kit.sendAll(producer, all.subList(60, 120));
        push.awaitAll(expected);
        kit.fence(producer, push.sink, "fence");
        push.sink.exactly(expected);
        check(refused(kit).contains("at position 10"), "a bad expression: " + refused(kit));
        return expected.size() + " of " + all.size() + " messages";
    }

    /** What a consumer is told at its start whose expression ends too early. */
    private static String refused(Kit kit) {
        try {
            kit.push(MessageSelector.bySql("number > "));
        } catch (MQClientException e) {
            return String.valueOf(e);
        }
        return "was not refused";
    }

    /**
     * With a callback, which the client also calls when the request is sent, without a reply; the synchronous form of
     * 5.3.3 ends then.
     */
    private static Message request(DefaultMQProducer requester, Message request) throws Exception {
        CompletableFuture<Message> reply = new CompletableFuture<>();
        requester.request(request, new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                if (message != null) reply.complete(message);
            }

            @Override
            public void onException(Throwable e) {
                reply.completeExceptionally(e);
            }
        }, 20_000);
        return reply.get(30, TimeUnit.SECONDS);
    }

    static String requestReply(Kit kit) throws Exception {
        DefaultMQProducer requester = kit.producer();
        DefaultMQProducer replier = kit.producer();
        // Not by the requester: 4.9 makes itself known to the brokers of a topic at its first request for it.
        Kit.sent(replier.send(new Message(kit.topic, "first".getBytes(StandardCharsets.UTF_8))), "first");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(kit.group);
        consumer.setNamesrvAddr(kit.namesrv);
        consumer.setInstanceName(kit.nextInstance());
        consumer.subscribe(kit.topic, "request");
        consumer.registerMessageListener((MessageListenerConcurrently) (list, context) -> {
            for (MessageExt request : list) {
                try {
                    byte[] body = ("reply to " + new String(request.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
                    replier.send(MessageUtil.createReplyMessage(request, body), 10_000);
                } catch (Exception e) {
                    e.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        kit.onClose(consumer::shutdown);
        int count = 30;
        for (int i = 0; i < count; i++) {
            Message request = new Message(kit.topic, "request", ("request " + i).getBytes(StandardCharsets.UTF_8));
            Message reply = request(requester, request);
            String body = new String(reply.getBody(), StandardCharsets.UTF_8);
            check(body.equals("reply to request " + i), "request " + i + " was answered: " + body);
        }
        return count + " requests";
    }
}
